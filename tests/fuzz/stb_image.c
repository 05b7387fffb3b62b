/* stb_image.c: the decoder as other programs have it, with its own memory and assertions. */
#define STB_IMAGE_IMPLEMENTATION
#if defined(__has_include)
#if __has_include(<stb_image.h>)
#include <stb_image.h>
#else
#include <stb/stb_image.h>
#endif
#endif
