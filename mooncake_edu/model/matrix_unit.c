/* Products of float32 matrices on the matrix unit of a processor (Intel's AMX), whose factors have 8 significant bits.
 *
 * A float32 number is cut, exactly, in three parts of 8 bits each: x = x1 + x2 + x3. Of the nine products of the parts
 * of two numbers six are added up, by the unit and in float32; the other three are below what float32 rounds away.
 * native.py compiles this file with STRIPE defined. Where there is no such unit it says so, and computes nothing.
 */
#include <stdint.h>
#include <stdlib.h>

#if defined(__AMX_BF16__) && defined(__AVX512F__) && defined(__linux__)
#include <immintrin.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

#define INLINE static inline __attribute__((always_inline))
#define MIN(a, b) ((a) < (b) ? (a) : (b))

enum { SIDE = 16, PAIRS = 16, DEPTH = 2 * PAIRS, TILE = SIDE * PAIRS }; /* a tile holds 16 by 16 pairs of parts */
enum { PARTS = 3, BLOCK = 2 * SIDE, CHUNK = PARTS * 2 * TILE };         /* a chunk: BLOCK rows or columns, DEPTH deep */
enum { ROWS = 256, CHUNKS = 24 };                                       /* what is cut at once fits the second cache */

typedef uint32_t words __attribute__((vector_size(64), aligned(4), may_alias));
typedef float floats __attribute__((vector_size(64), aligned(4), may_alias));

static const struct {
    uint8_t palette, unused[15];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tiles = {1, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

/* Whether there is such a unit; the system is asked for it once a process. */
int matrix_unit(void)
{
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

/* Cuts 16 pairs of numbers: their first parts go to `to`, the others to the same place of the next parts' tiles. */
INLINE void cut(floats low, floats high, uint32_t *to)
{
    for (int part = 0; part < PARTS; part++, to += 2 * TILE) {
        words top = (words)high & 0xffff0000, bottom = (words)low & 0xffff0000;
        *(words *)to = top | bottom >> 16;
        high -= (floats)top, low -= (floats)bottom;
    }
}

/* At most BLOCK rows of x as [chunk][part][row][pair], with zeros for rows that are not there. Number i of a chunk is
 * paired with number i + PAIRS, so that nothing has to be moved across a vector. */
static void cut_rows(const float *x, int64_t rows, int64_t stride, int64_t chunks, uint32_t *to)
{
    for (int64_t row = 0; row < BLOCK; row++)
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            const floats *from = (const floats *)(x + row * stride + chunk * DEPTH);
            floats low = {0}, high = {0};
            if (row < rows) low = from[0], high = from[1];
            cut(low, high, to + chunk * CHUNK + row * PAIRS);
        }
}

/* BLOCK columns of a stripe as [chunk][part][half][pair][column]. */
static void cut_columns(const float *weight, int64_t chunks, uint32_t *to)
{
    for (int64_t chunk = 0; chunk < chunks; chunk++)
        for (int64_t pair = 0; pair < PAIRS; pair++)
            for (int half = 0; half < 2; half++) {
                const float *from = weight + (chunk * DEPTH + pair) * STRIPE + half * SIDE;
                cut(*(const floats *)from, *(const floats *)(from + PAIRS * STRIPE),
                    to + chunk * CHUNK + half * TILE + pair * SIDE);
            }
}

INLINE void load_rows(const uint32_t *a, int part)
{
    _tile_loadd(4, a + part * 2 * TILE, 64);
    _tile_loadd(5, a + part * 2 * TILE + TILE, 64);
}

INLINE void load_columns(const uint32_t *b, int part)
{
    _tile_loadd(6, b + part * 2 * TILE, 64);
    _tile_loadd(7, b + part * 2 * TILE + TILE, 64);
}

INLINE void multiply(void)
{
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}

/* y [BLOCK, BLOCK] = base + a @ b; a base of stride 0 is one row for all. */
INLINE void add_product(float *y, int64_t stride, const float *base, int64_t base_stride, const uint32_t *a,
                        const uint32_t *b, int64_t chunks)
{
    const float *lower_base = base + SIDE * base_stride;
    float *lower = y + SIDE * stride;
    __asm__ volatile("" ::: "memory"); /* a compiler does not know that loading a tile reads memory */
    _tile_loadd(0, base, 4 * base_stride);
    _tile_loadd(1, base + SIDE, 4 * base_stride);
    _tile_loadd(2, lower_base, 4 * base_stride);
    _tile_loadd(3, lower_base + SIDE, 4 * base_stride);
    for (int64_t chunk = 0; chunk < chunks; chunk++, a += CHUNK, b += CHUNK) {
        load_rows(a, 0), load_columns(b, 2), multiply(); /* each pair of parts differs from the last in one */
        load_columns(b, 1), multiply();
        load_rows(a, 1), multiply();
        load_columns(b, 0), multiply();
        load_rows(a, 2), multiply();
        load_rows(a, 0), multiply();
    }
    _tile_stored(0, y, 4 * stride);
    _tile_stored(1, y + SIDE, 4 * stride);
    _tile_stored(2, lower, 4 * stride);
    _tile_stored(3, lower + SIDE, 4 * stride);
}

/* y [rows, out] = x [rows, in] @ weight + bias. The weight lies as few_rows in kernels.c has it, `in` is a multiple of
 * DEPTH, and y has room for whole blocks of rows. Returns 1, and computes nothing, if there is no memory. */
int many_rows(const float *x, const float *weight, const float *bias, float *y, int64_t rows, int64_t in, int64_t out,
              int threads)
{
    static const float nothing[BLOCK];
    uint32_t *a = aligned_alloc(64, (ROWS / BLOCK + threads) * CHUNKS * CHUNK * sizeof *a);
    if (!a) return 1;
#pragma omp parallel num_threads(threads)
    {
        uint32_t *b = a + (ROWS / BLOCK + omp_get_thread_num()) * CHUNKS * CHUNK;
        _tile_loadconfig(&tiles);
        for (int64_t row = 0; row < rows; row += ROWS)
            for (int64_t k = 0; k < in; k += CHUNKS * DEPTH) {
                int64_t left = rows - row, blocks = (MIN(ROWS, left) + BLOCK - 1) / BLOCK;
                int64_t chunks = MIN(CHUNKS, (in - k) / DEPTH);
#pragma omp for schedule(static)
                for (int64_t i = 0; i < blocks; i++)
                    cut_rows(x + (row + i * BLOCK) * in + k, left - i * BLOCK, in, chunks, a + i * chunks * CHUNK);
#pragma omp for schedule(dynamic)
                for (int64_t column = 0; column < out; column += BLOCK) {
                    const float *base = bias ? bias + column : nothing;
                    int64_t stripe = column / STRIPE, within = column % STRIPE;
                    cut_columns(weight + (stripe * in + k) * STRIPE + within, chunks, b);
                    for (int64_t i = 0; i < blocks; i++) {
                        float *to = y + (row + i * BLOCK) * out + column;
                        add_product(to, out, k ? to : base, k ? out : 0, a + i * chunks * CHUNK, b, chunks);
                    }
                }
            }
        _tile_release();
    }
    free(a);
    return 0;
}
#else
int matrix_unit(void) { return 0; }
int many_rows(void) { return 1; }
#endif
