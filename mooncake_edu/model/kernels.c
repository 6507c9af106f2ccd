/* What a step on a CPU spends its time on besides large matrix products, in float32.
 *
 * native.py compiles this file once a machine, with HEAD_DIM, STRIPE and MOST_ROWS defined, and calls it with the
 * addresses of tensors. Vectors are those that GCC and Clang have for any processor; threads are those of torch's own
 * OpenMP. A stride counts floats from one row to the next; within a row all is contiguous.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
#define REGISTERS 32
#else
#define REGISTERS 16
#endif

#define INLINE static inline __attribute__((always_inline))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define VECTORS (HEAD_DIM / LANES)

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef float four __attribute__((vector_size(16)));
typedef int32_t ifour __attribute__((vector_size(16)));
union parts {
    vec whole;
    four part[LANES / 4];
};

INLINE vec load(const float *from) { return *(const vec *)from; }
INLINE void store(float *to, vec x) { *(vec *)to = x; }
INLINE vec all(float x) { return x - (vec){}; }
INLINE vec where(ivec test, vec yes, vec no) { return (vec)((test & (ivec)yes) | (~test & (ivec)no)); }
INLINE vec larger(vec a, vec b) { return where(a < b, b, a); }

INLINE float total(vec x)
{
    union parts of = {x};
    four sum = of.part[0];
    for (int i = 1; i < LANES / 4; i++) sum += of.part[i];
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

INLINE float largest(vec x)
{
    union parts of = {x};
    four most = of.part[0];
    for (int i = 1; i < LANES / 4; i++) {
        ifour less = most < of.part[i];
        most = (four)((less & (ifour)of.part[i]) | (~less & (ifour)most));
    }
    float top = most[0];
    for (int i = 1; i < 4; i++) top = most[i] > top ? most[i] : top;
    return top;
}

/* e to the x, for x up to 88; what is not a number stays so. With x = n ln 2 + rest it is 2^n times a polynomial of the
 * rest (the coefficients of the Cephes library). Adding 1.5 * 2^23 rounds to a whole number, found in the low bits.
 * Below -87 it is 0: products with what is nearly 0 take the processor a hundred times as long. */
INLINE vec exponential(vec x)
{
    vec shifted = x * 1.44269504f + 12582912.0f;
    vec whole = shifted - 12582912.0f;
    vec rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    vec sum = all(1.9875691500e-4f);
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    return where(x < -87, (vec){}, (vec)((ivec)sum + ((ivec)shifted << 23)));
}

int lanes(void) { return LANES; }

/* ---- row by row ---- */

/* y = x / root(mean(x^2) + eps) * weight, where `more` is first added to x if it is there; width is a multiple of
 * LANES. */
void rms_norm(float *x, const float *more, const float *weight, float *y, int64_t rows, int64_t width, float eps,
              int threads)
{
#pragma omp parallel for num_threads(threads) if (rows * width > 16384)
    for (int64_t row = 0; row < rows; row++) {
        float *from = x + row * width;
        vec squares = {};
        for (int64_t i = 0; i < width; i += LANES) {
            if (more) store(from + i, load(from + i) + load(more + row * width + i));
            squares += load(from + i) * load(from + i);
        }
        float scale = 1 / sqrtf(total(squares) / width + eps);
        for (int64_t i = 0; i < width; i += LANES)
            store(y + row * width + i, load(from + i) * scale * load(weight + i));
    }
}

/* y = silu(gate) * up for rows of gate and up side by side; width is a multiple of LANES. */
void gated(const float *gate_up, float *y, int64_t rows, int64_t width, int threads)
{
#pragma omp parallel for num_threads(threads) if (rows * width > 16384)
    for (int64_t row = 0; row < rows; row++) {
        const float *gate = gate_up + row * 2 * width, *up = gate + width;
        for (int64_t i = 0; i < width; i += LANES) {
            vec x = load(gate + i), most = where(x < -88, all(88), -x);
            store(y + row * width + i, x / (exponential(most) + 1.0f) * load(up + i));
        }
    }
}

/* Turns the pairs (i, i + HEAD_DIM / 2) of every head in place, by a row's cosines and sines. */
void rotate(float *x, int64_t stride, const float *cosine, const float *sine, int64_t rows, int64_t heads, int threads)
{
    enum { HALF = HEAD_DIM / 2 };
#pragma omp parallel for num_threads(threads) if (rows * heads * HEAD_DIM > 16384)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < heads; head++) {
            float *first = x + row * stride + head * HEAD_DIM, *second = first + HALF;
            for (int i = 0; i < HALF; i += LANES) {
                vec a = load(first + i), b = load(second + i);
                vec c = load(cosine + row * HALF + i), s = load(sine + row * HALF + i);
                store(first + i, a * c - b * s);
                store(second + i, b * c + a * s);
            }
        }
}

/* ---- matrix products ---- */

/* Rows and vectors side by side of c that are summed up in registers. */
#define HIGH 6
#define WIDE (REGISTERS == 32 && VECTORS % 4 == 0 ? 4 : VECTORS % 2 == 0 ? 2 : 1)
/* Floats that are fetched ahead of where a weight is read: what it takes to keep the memory busy. */
#define AHEAD 1024

/* c [rows, wide vectors] = a [rows, k] @ b [k, wide vectors], added to what is in c or not, for at most HIGH rows. */
INLINE void tile(int rows, int wide, int add, int fetch, float *c, int64_t c_stride, const float *a, int64_t a_stride,
                 const float *b, int64_t b_stride, int64_t k)
{
    vec sum[HIGH][4] = {};
    for (int64_t step = 0; step < k; step++) {
        vec part[4];
        for (int j = 0; j < wide; j++) {
            part[j] = load(b + step * b_stride + j * LANES);
            if (fetch) __builtin_prefetch(b + step * b_stride + j * LANES + AHEAD);
        }
        for (int i = 0; i < rows; i++) {
            vec x = all(a[i * a_stride + step]);
            for (int j = 0; j < wide; j++) sum[i][j] += x * part[j];
        }
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < wide; j++) {
            float *to = c + i * c_stride + j * LANES;
            store(to, add ? sum[i][j] + load(to) : sum[i][j] + 0.0f);
        }
}

/* The same for any number of rows, in tiles of about equal height. */
INLINE void tiles(int64_t rows, int wide, int add, int fetch, float *c, int64_t c_stride, const float *a,
                  int64_t a_stride, const float *b, int64_t b_stride, int64_t k)
{
    for (int64_t left = (rows + HIGH - 1) / HIGH; left; left--) {
        int64_t high = (rows + left - 1) / left;
        switch (high) {
        case 1: tile(1, wide, add, fetch, c, c_stride, a, a_stride, b, b_stride, k); break;
        case 2: tile(2, wide, add, fetch, c, c_stride, a, a_stride, b, b_stride, k); break;
        case 3: tile(3, wide, add, fetch, c, c_stride, a, a_stride, b, b_stride, k); break;
        case 4: tile(4, wide, add, fetch, c, c_stride, a, a_stride, b, b_stride, k); break;
        case 5: tile(5, wide, add, fetch, c, c_stride, a, a_stride, b, b_stride, k); break;
        default: tile(6, wide, add, fetch, c, c_stride, a, a_stride, b, b_stride, k);
        }
        rows -= high, c += high * c_stride, a += high * a_stride;
    }
}

/* y [rows, out] = x [rows, in] @ weight + bias, for few rows: bound by reading the weight, which is done once.
 * The weight lies as [out / STRIPE][in][STRIPE]; a piece of a stripe that fits the first cache serves all rows. */
#define DEEP 64
void few_rows(const float *x, const float *weight, const float *bias, float *y, int64_t rows, int64_t in, int64_t out,
              int threads)
{
    enum { W = REGISTERS == 32 ? 4 : 2 };
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t stripe = 0; stripe < out / STRIPE; stripe++) {
        float *to = y + stripe * STRIPE;
        for (int64_t row = 0; row < rows; row++)
            for (int i = 0; i < STRIPE; i++) to[row * out + i] = bias ? bias[stripe * STRIPE + i] : 0;
        for (int64_t k = 0; k < in; k += DEEP)
            for (int i = 0; i < STRIPE; i += W * LANES)
                tiles(rows, W, 1, 1, to + i, out, x + k, in, weight + (stripe * in + k) * STRIPE + i, STRIPE,
                      MIN(DEEP, in - k));
    }
}

/* ---- attention over pages [block][layer][K, V][kv_head][token][head_dim] ----
 * `keys` is the layer's first key in block 0, `places` are the offsets of a sequence's blocks from block 0, in floats.
 * Values are kv_heads heads behind the keys, a head is block_size tokens. Queries come as [token][head][head_dim]; each
 * KV head serves `group` of them. */

/* Puts the new tokens of a layer into the pages; slots are their offsets from block 0. */
void put(float *keys, const int64_t *slots, const float *k, int64_t k_stride, const float *v, int64_t v_stride,
         int64_t tokens, int64_t kv_heads, int64_t block_size, int threads)
{
    int64_t head_size = block_size * HEAD_DIM;
#pragma omp parallel for num_threads(threads) if (tokens * kv_heads * HEAD_DIM > 16384)
    for (int64_t token = 0; token < tokens; token++)
        for (int64_t head = 0; head < kv_heads; head++) {
            float *key = keys + slots[token] + head * head_size;
            memcpy(key, k + token * k_stride + head * HEAD_DIM, 4 * HEAD_DIM);
            memcpy(key + kv_heads * head_size, v + token * v_stride + head * HEAD_DIM, 4 * HEAD_DIM);
        }
}

/* The softmax-weighted mean of the values so far: relative to the largest score, their sum and that of the weights. */
struct mean {
    float top, weight;
    float values[HEAD_DIM];
};

/* The factor that brings a mean to a new largest score. */
INLINE float rescale(float *top, float most)
{
    float higher = *top > most ? *top : most;
    float factor = *top == higher ? 1 : exponential(all(*top - higher))[0];
    *top = higher;
    return factor;
}

/* Adds at most LANES tokens to the mean of one query head. */
INLINE void attend_few(struct mean *mean, const float *q, const float *k, const float *v, int64_t count)
{
    float scores[LANES];
    store(scores, all(-INFINITY));
    for (int64_t token = 0; token < count; token++) {
        vec sum = {};
        for (int i = 0; i < HEAD_DIM; i += LANES) sum += load(q + i) * load(k + token * HEAD_DIM + i);
        scores[token] = total(sum);
    }
    float factor = rescale(&mean->top, largest(load(scores)));
    vec weights = exponential(load(scores) - mean->top);
    store(scores, weights);
    mean->weight = mean->weight * factor + total(weights);
    vec sum[VECTORS];
    for (int i = 0; i < VECTORS; i++) sum[i] = load(mean->values + i * LANES) * factor;
    for (int64_t token = 0; token < count; token++)
        for (int i = 0; i < VECTORS; i++) sum[i] += scores[token] * load(v + token * HEAD_DIM + i * LANES);
    for (int i = 0; i < VECTORS; i++) store(mean->values + i * LANES, sum[i]);
}

/* One new token in each of several sequences: keys and values are read once, where they lie, the next block's ahead of
 * time. `places` has `width` entries a sequence; a group has at most MOST_ROWS heads. */
void attend_single(const float *keys, const int64_t *places, int64_t width, const int64_t *lengths, const float *q,
                   int64_t stride, float *out, int64_t sequences, int64_t kv_heads, int64_t group, int64_t block_size,
                   float scale, int threads)
{
    int64_t head_size = block_size * HEAD_DIM;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t work = 0; work < sequences * kv_heads; work++) {
        int64_t sequence = work / kv_heads, head = work % kv_heads, length = lengths[sequence];
        const int64_t *blocks = places + sequence * width;
        struct mean means[MOST_ROWS];
        float query[MOST_ROWS * HEAD_DIM];
        for (int64_t i = 0; i < group * HEAD_DIM; i++)
            query[i] = q[sequence * stride + head * group * HEAD_DIM + i] * scale;
        for (int64_t g = 0; g < group; g++) means[g] = (struct mean){.top = -INFINITY};
        for (int64_t start = 0; start < length; start += block_size) {
            const float *k = keys + *blocks++ + head * head_size, *v = k + kv_heads * head_size;
            int64_t count = MIN(block_size, length - start);
            if (start + block_size < length)
                for (int64_t i = 0; i < MIN(head_size, AHEAD); i += 16) {
                    __builtin_prefetch(keys + *blocks + head * head_size + i);
                    __builtin_prefetch(keys + *blocks + (kv_heads + head) * head_size + i);
                }
            for (int64_t token = 0; token < count; token += LANES)
                for (int64_t g = 0; g < group; g++)
                    attend_few(means + g, query + g * HEAD_DIM, k + token * HEAD_DIM, v + token * HEAD_DIM,
                               MIN(LANES, count - token));
        }
        for (int64_t g = 0; g < group; g++)
            for (int i = 0; i < HEAD_DIM; i++)
                out[(work * group + g) * HEAD_DIM + i] = means[g].values[i] / means[g].weight;
    }
}

/* Keys that are scored at once. */
#define KEYS 64

/* Copies a sequence's keys as [head][piece][head_dim][KEYS] and its values as [head][piece][KEYS][head_dim]: laid out as
 * the products below read them, with zeros behind the last token. */
static void gather(float *to_keys, float *to_values, const float *keys, const int64_t *places, int64_t length,
                   int64_t kv_heads, int64_t block_size, int threads)
{
    int64_t head_size = block_size * HEAD_DIM, pieces = (length + KEYS - 1) / KEYS;
#pragma omp parallel for num_threads(threads)
    for (int64_t work = 0; work < kv_heads * pieces; work++) {
        float *k = to_keys + work * KEYS * HEAD_DIM, *v = to_values + work * KEYS * HEAD_DIM;
        for (int64_t i = 0; i < KEYS; i++) {
            int64_t token = work % pieces * KEYS + i;
            static const float nothing[HEAD_DIM];
            const float *key = nothing, *value = nothing;
            if (token < length) {
                int64_t place = places[token / block_size] + work / pieces * head_size;
                key = keys + place + token % block_size * HEAD_DIM;
                value = key + kv_heads * head_size;
            }
            for (int d = 0; d < HEAD_DIM; d++) k[d * KEYS + i] = key[d];
            memcpy(v + i * HEAD_DIM, value, 4 * HEAD_DIM);
        }
    }
}

INLINE void product(int add, float *c, int64_t n, const float *a, int64_t k, const float *b, int64_t rows)
{
    for (int64_t i = 0; i < n; i += WIDE * LANES) tiles(rows, WIDE, add, 0, c + i, n, a, k, b + i, n, k);
}

/* Turns the scores of a row into weights and brings its mean, whose values lie apart, to their largest. */
INLINE void weigh(float *scores, float *top, float *weight, float *values)
{
    vec most = load(scores), sum = {};
    for (int i = LANES; i < KEYS; i += LANES) most = larger(most, load(scores + i));
    float factor = rescale(top, largest(most));
    for (int i = 0; i < KEYS; i += LANES) {
        vec x = exponential(load(scores + i) - *top);
        sum += x;
        store(scores + i, x);
    }
    *weight = *weight * factor + total(sum);
    if (factor != 1)
        for (int i = 0; i < HEAD_DIM; i += LANES) store(values + i, load(values + i) * factor);
}

/* `count` new tokens of one sequence behind `start` others, each of which sees all up to itself; their keys and values
 * are in the pages. A row is a query head of a token; as many as stay in the second cache go over the keys together.
 * Returns 1, and computes nothing, if there is no memory. */
int attend_chunk(const float *keys, const int64_t *places, int64_t start, int64_t count, const float *q, int64_t stride,
                 float *out, int64_t kv_heads, int64_t group, int64_t block_size, float scale, int threads)
{
    int64_t pieces = (start + count + KEYS - 1) / KEYS, most = MOST_ROWS / group, runs = (count + most - 1) / most;
    int64_t size = kv_heads * pieces * KEYS * HEAD_DIM;
    float *near_keys = malloc(2 * size * sizeof(float)), *near_values = near_keys + size;
    if (!near_keys) return 1;
    gather(near_keys, near_values, keys, places, start + count, kv_heads, block_size, threads);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t work = 0; work < runs * kv_heads; work++) {
        int64_t first = (runs - 1 - work / kv_heads) * most, head = work % kv_heads; /* the longest first */
        int64_t tokens = MIN(most, count - first), rows = tokens * group;
        float query[MOST_ROWS * HEAD_DIM], values[MOST_ROWS * HEAD_DIM], scores[MOST_ROWS * KEYS];
        float top[MOST_ROWS], weight[MOST_ROWS];
        memset(values, 0, rows * HEAD_DIM * sizeof(float));
        for (int64_t row = 0; row < rows; row++) {
            const float *from = q + (first + row / group) * stride + (head * group + row % group) * HEAD_DIM;
            for (int i = 0; i < HEAD_DIM; i++) query[row * HEAD_DIM + i] = from[i] * scale;
            top[row] = -INFINITY, weight[row] = 0;
        }
        for (int64_t key = 0; key < start + first + tokens; key += KEYS) {
            int64_t piece = (head * pieces + key / KEYS) * KEYS * HEAD_DIM;
            product(0, scores, KEYS, query, HEAD_DIM, near_keys + piece, rows);
            for (int64_t row = 0; row < rows; row++) {
                int64_t seen = start + first + row / group + 1 - key;
                for (int64_t i = seen < 0 ? 0 : seen; i < KEYS; i++) scores[row * KEYS + i] = -INFINITY;
                weigh(scores + row * KEYS, top + row, weight + row, values + row * HEAD_DIM);
            }
            product(1, values, HEAD_DIM, scores, KEYS, near_values + piece, rows);
        }
        for (int64_t row = 0; row < rows; row++) {
            float *to = out + ((first + row / group) * kv_heads * group + head * group + row % group) * HEAD_DIM;
            for (int i = 0; i < HEAD_DIM; i++) to[i] = values[row * HEAD_DIM + i] / weight[row];
        }
    }
    free(near_keys);
    return 0;
}
