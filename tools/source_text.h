/* source_text.h - how the tools look at C. Include <ctype.h> and <string.h> before it. */

/* Overwrites comments with spaces and, where `literals` is set, the inside of literals, too. The
   names in #include lines stay. */
static void blank(char *text, int literals) {
    enum { CODE, LINE_COMMENT, BLOCK_COMMENT, LITERAL } state = CODE;
    char quote = 0;
    int in_include = 0;
    char *p;
    for (p = text; *p; p++) {
        if (*p == '\n') {
            in_include = 0;
            if (state == LINE_COMMENT) state = CODE;
        } else if (state == CODE) {
            if (*p == '#') {
                char *word = p + 1 + strspn(p + 1, " \t");
                in_include = strncmp(word, "include", 7) == 0;
            }
            if (*p == '/' && (p[1] == '/' || p[1] == '*')) {
                state = p[1] == '/' ? LINE_COMMENT : BLOCK_COMMENT;
                p[0] = p[1] = ' ';
                p++;
            } else if ((*p == '"' || *p == '\'') && !in_include) {
                state = LITERAL;
                quote = *p;
            }
        } else if (state == LITERAL && *p == quote) {
            state = CODE;
        } else if (state == BLOCK_COMMENT && *p == '*' && p[1] == '/') {
            p[0] = p[1] = ' ';
            p++;
            state = CODE;
        } else {
            const int stays = (state == LITERAL && !literals) || (*p == '\\' && p[1] == '\n');
            if (state == LITERAL && *p == '\\' && p[1] && p[1] != '\n') {
                if (!stays) *p = ' ';
                p++;
            }
            if (*p != '\n' && !stays) *p = ' ';
        }
    }
}

static void blank_comments_and_literals(char *text) { blank(text, 1); }

static int is_name(char c) { return isalnum((unsigned char)c) || c == '_'; }
