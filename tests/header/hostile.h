/* What other people's headers define: windows.h and rpcndr.h, X11, complex.h, math.h of System V,
   the assertion macros of old Mac headers. mptrain.h must read the same after all of it. */
#define min(a, b) (((a) < (b)) ? (a) : (b))
#define max(a, b) (((a) > (b)) ? (a) : (b))
#define near
#define far
#define small char
#define hyper long
#define interface struct
#define IN
#define OUT
#define OPTIONAL
#define CONST const
#define VOID void
#define TRUE 1
#define FALSE 0
#define ERROR 0
#define NO_ERROR 0
#define STRICT 1
#define DELETE 0x10000
#define DIFFERENCE 11
#define CALLBACK
#define RGB(r, g, b) ((r) | (g) << 8 | (b) << 16)
#define None 0L
#define Always 2
#define Success 0
#define Status int
#define Bool int
#define True 1
#define False 0
#define Complex 0
#define I _Complex_I
#define DOMAIN 1
#define OVERFLOW 3
#define UNDERFLOW 4
#define major(device) ((device) >> 8)
#define minor(device) ((device) & 0xff)
#define check(assertion)
#define verify(assertion)
#define require(assertion, label)
