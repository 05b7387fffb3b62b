// rewrite FILE.cu > FILE.cpp: turns into C++ the two constructs of CUDA that no macro can reach.
//
//     name<T><<<grid, block, bytes, stream>>>(a, b)
//         -> ::cudasim::launch("name<T>", ::cudasim::config(grid, block, bytes, stream),
//                              name<T>, a, b)
//     extern __shared__ __align__(16) T name[];
//         -> T *name = (T *)::cudasim::dynamic_shared();
//
// Comments, literals and the number of lines stay as they are, and #line names the .cu: compilers,
// sanitizers and coverage point at its lines. A kernel that is a template is launched with all its
// template arguments written out, because its address is taken.
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

using std::string;

static string source;
static const char *path;

// How many lines end there.
static std::ptrdiff_t lines(const string &text, size_t from, size_t to) {
    return std::count(text.begin() + (std::ptrdiff_t)from, text.begin() + (std::ptrdiff_t)to, '\n');
}

[[noreturn]] static void die(size_t at, const char *message) {
    fprintf(stderr, "%s:%td: rewrite: %s\n", path, 1 + lines(source, 0, at), message);
    exit(1);
}

static bool is_space(char c) { return isspace((unsigned char)c) != 0; }
static bool in_name(char c) { return isalnum((unsigned char)c) || c == '_' || c == ':'; }
static bool starts(size_t at, const char *text) {
    return source.compare(at, strlen(text), text) == 0;
}

// The end of the comment or literal that starts at `at`; `at` itself when none does.
static size_t skip_inert(size_t at) {
    const size_t size = source.size();
    const char before = at ? source[at - 1] : ' ';
    size_t end = at;
    if (starts(at, "//")) {
        while (end < size && !(source[end] == '\n' && source[end - 1] != '\\')) end++;
    } else if (starts(at, "/*")) {
        end = source.find("*/", at + 2);
        end = end == string::npos ? size : end + 2;
    } else if (starts(at, "R\"") && !in_name(before)) {
        const size_t open = source.find('(', at);
        const string close = ")" + source.substr(at + 2, open - at - 2) + "\"";
        end = source.find(close, open);
        end = end == string::npos ? size : end + close.size();
    } else if (source[at] == '"' || (source[at] == '\'' && !isxdigit((unsigned char)before))) {
        for (end = at + 1; end < size && source[end] != source[at]; end++)
            if (source[end] == '\\') end++;
        end = std::min(end + 1, size);
    }
    return end;
}

// From `at` to the first `stop` outside brackets.
static size_t find_outside(size_t at, const char *stop, size_t where) {
    for (int depth = 0; at < source.size();) {
        const size_t past = skip_inert(at);
        if (past != at) {
            at = past;
            continue;
        }
        if (depth == 0 && starts(at, stop)) return at;
        if (strchr("([{", source[at])) depth++;
        if (strchr(")]}", source[at])) depth--;
        at++;
    }
    die(where, "a bracket or a launch is not closed");
}

// Where the kernel's name, template arguments included, begins in `text`, which ends with it.
static size_t kernel_start(const string &text, size_t where) {
    size_t at = text.size();
    if (at && text[at - 1] == '>') {
        int angles = 0, rounds = 0;
        do {
            if (at-- == 0 || strchr(";{}", text[at])) die(where, "no kernel name before <<<");
            if (text[at] == ')') rounds++;
            if (text[at] == '(') rounds--;
            if (rounds == 0) angles += (text[at] == '>') - (text[at] == '<');
        } while (angles || rounds);
    }
    const size_t end = at;
    while (at && in_name(text[at - 1])) at--;
    if (at == end) die(where, "no kernel name before <<<");
    return at;
}

static string trimmed(string text) {
    while (!text.empty() && is_space(text.back())) text.pop_back();
    text.erase(0, text.find_first_not_of(" \t\r\n"));
    return text;
}

static string one_line(string text) {
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
}

static string rewrite(size_t at, size_t end);

// Rewrites the launch whose <<< stands at `at`; the kernel's name ends at `code_end` in `done`.
static size_t rewrite_launch(size_t at, string &done, size_t code_end) {
    done.resize(code_end);
    const size_t start = kernel_start(done, at);
    const string kernel = done.substr(start);
    done.resize(start);
    const size_t close = find_outside(at + 3, ">>>", at);
    size_t open = close + 3;
    while (open < source.size() && (skip_inert(open) != open || is_space(source[open])))
        open = std::max(open + 1, skip_inert(open));
    if (source[open] != '(') die(at, "no arguments after >>>");
    const size_t end = find_outside(open + 1, ")", at);
    const string arguments = rewrite(open + 1, end);
    done += "::cudasim::launch(\"" + one_line(kernel) + "\", ::cudasim::config(" +
            rewrite(at + 3, close) + "), " + kernel + (trimmed(arguments).empty() ? "" : ", ") +
            arguments + ")";
    return end + 1;
}

// Rewrites the declaration of dynamic shared memory at `at`, if one stands there.
static size_t rewrite_shared(size_t at, string &done) {
    const size_t end = source.find(';', at);
    if (end == string::npos) return at;
    string text = source.substr(at + 6, end - at - 6);
    const size_t word = text.find("__shared__");
    if (word == string::npos) return at;
    text.erase(word, strlen("__shared__"));
    for (const char *align : {"__align__", "alignas"}) {
        const size_t from = text.find(align);
        if (from != string::npos) text.erase(from, text.find(')', from) + 1 - from);
    }
    const size_t bracket = text.rfind('[');
    if (bracket == string::npos) die(at, "extern __shared__ must declare an array");
    text = one_line(trimmed(text.substr(0, bracket)));
    size_t name = text.size();
    while (name && in_name(text[name - 1])) name--;
    const string type = trimmed(text.substr(0, name));
    done += type + " *" + text.substr(name) + " = (" + type + " *)::cudasim::dynamic_shared()";
    return end;
}

static string rewrite(size_t at, size_t end) {
    string done;
    size_t code_end = 0; // before spaces and comments
    while (at < end) {
        size_t next = skip_inert(at);
        if (next != at) {
            done.append(source, at, next - at);
            if (source[at] != '/') code_end = done.size();
            at = next;
            continue;
        }
        const bool launch = starts(at, "<<<");
        const bool shared = starts(at, "extern") && !(at && in_name(source[at - 1]));
        const auto lines_before = launch || shared ? lines(done, 0, done.size()) : 0;
        if (shared) next = rewrite_shared(at, done);
        if (launch) next = rewrite_launch(at, done, code_end);
        if (next == at) {
            done += source[at++];
            if (!is_space(done.back())) code_end = done.size();
            continue;
        }
        const auto lost = lines_before + lines(source, at, next) - lines(done, 0, done.size());
        code_end = done.size();
        done.append((size_t)lost, '\n');
        at = next;
    }
    return done;
}

int main(int count, char **arguments) {
    if (count != 2) {
        fprintf(stderr, "usage: rewrite FILE.cu\n");
        return 2;
    }
    path = arguments[1];
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    if (!file) {
        perror(path);
        return 1;
    }
    source = text.str();
    std::cout << "#line 1 \"" << path << "\"\n" << rewrite(0, source.size());
    return std::cout.good() ? 0 : 1;
}
