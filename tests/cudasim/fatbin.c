/* fatbin.c: what machine code an object of nvcc has, a line for each: sm_80, or compute_120 where
   it is PTX. The names of architectures stand in the code itself, which may be compressed; here
   they are read from the entries of the container.
       fatbin OBJECT */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t number_at(const unsigned char *p, int bytes) {
    uint64_t x = 0;
    while (bytes-- > 0) x = x << 8 | p[bytes];
    return x;
}

/* An entry: kind (1: PTX), version; bytes of its header; of what follows; .. at 28: the number. */
static void print_entries(const unsigned char *p, const unsigned char *end) {
    while (end - p >= 64) {
        const uint64_t header = number_at(p + 4, 4), size = number_at(p + 8, 8);
        printf("%s_%d\n", number_at(p, 2) == 1 ? "compute" : "sm", (int)number_at(p + 28, 4));
        if (header < 32 || header > (uint64_t)(end - p) || size > (uint64_t)(end - p) - header)
            return;
        p += header + size;
    }
}

int main(int argc, char **argv) {
    static const unsigned char magic[4] = {0x50, 0xed, 0x55, 0xba};
    FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
    long size = -1;
    if (file && fseek(file, 0, SEEK_END) == 0) size = ftell(file);
    unsigned char *data = size > 0 ? (unsigned char *)malloc((size_t)size) : NULL;
    if (!data || fseek(file, 0, SEEK_SET) != 0) return 1;
    if (fread(data, 1, (size_t)size, file) != (size_t)size) return 1;
    for (long i = 0; i + 16 < size; i++) {
        if (memcmp(data + i, magic, sizeof magic) != 0) continue;
        const uint64_t header = number_at(data + i + 6, 2), bytes = number_at(data + i + 8, 8);
        const uint64_t left = (uint64_t)(size - i);
        if (header >= 16 && header < left && bytes <= left - header)
            print_entries(data + i + header, data + i + header + bytes);
    }
    free(data);
    return fclose(file) != 0;
}
