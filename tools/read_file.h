/* read_file.h - how the tools read a file. */
#include <stdio.h>
#include <stdlib.h>

/* The whole file as a string, to be freed; its size may be NULL. NULL when it cannot be read. */
static char *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    char *text = NULL, *larger;
    size_t used = 0, capacity = 0, got = 1;
    while (file && got > 0) {
        if (used + 4097 > capacity) {
            capacity = 2 * capacity + 8192;
            larger = (char *)realloc(text, capacity);
            if (!larger) break;
            text = larger;
        }
        got = fread(text + used, 1, 4096, file);
        used += got;
    }
    if (file && (got > 0 || ferror(file))) {
        free(text);
        text = NULL;
    }
    if (file) fclose(file);
    if (text) text[used] = '\0';
    if (size) *size = used;
    return text;
}
