// Sixteen lanes, whatever the instruction set: what the kernels need of it. Compiled once for each set (see build.py).
//
// GCC's vector extensions do the plain arithmetic: 512 bits are one register with avx512 and two with avx2. Only dot
// products of pairs and of quadruples have instructions of their own, and a stand-in where they are missing.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace loopwright {

constexpr int kLanes = 16;
typedef uint16_t bf16;

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
typedef double Doubles __attribute__((vector_size(64)));  // eight lanes
typedef int64_t Longs __attribute__((vector_size(64)));
// In memory: of any alignment, and over whatever type it was written as.
typedef Floats FloatsAt __attribute__((aligned(4), may_alias));
typedef Words WordsAt __attribute__((aligned(4), may_alias));
typedef Ints IntsAt __attribute__((aligned(4), may_alias));
typedef Halves HalvesAt __attribute__((aligned(2), may_alias));

static inline Floats load(const float* from) { return *(const FloatsAt*)from; }
static inline void store(float* to, Floats value) { *(FloatsAt*)to = value; }
static inline Words load_words(const void* from) { return *(const WordsAt*)from; }
static inline Doubles load_doubles(const float* from) {
    typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));
    return __builtin_convertvector(*(const Eight*)from, Doubles);
}
static inline Floats all(float value) { return Floats{} + value; }
static inline Words all_words(uint32_t value) { return Words{} + value; }

static inline uint32_t word_at(const void* from) {  // a pair of bf16, or four bytes
    uint32_t word;
    memcpy(&word, from, 4);
    return word;
}

static inline float widen(bf16 value) {
    uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, 4);
    return wide;
}

static inline Floats widen(Halves values) {
#ifdef __AVX512F__
    return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)values), 16);
#else
    return (Floats)(__builtin_convertvector(values, Words) << 16);
#endif
}

static inline Floats load_bf16(const bf16* from) { return widen(*(const HalvesAt*)from); }

// To nearest, ties to even. A NaN stays one: its quiet bit is set before the low half is cut.
static inline Halves narrow(Floats values) {
#ifdef __AVX512BF16__
    return (Halves)_mm512_cvtneps_pbh((__m512)values);
#else
    Words bits = (Words)values;
    Words rounded = bits + 0x7fff + ((bits >> 16) & 1);
    Words is_nan = (Words)(values != values);
    return __builtin_convertvector(((rounded & ~is_nan) | ((bits | 0x400000) & is_nan)) >> 16, Halves);
#endif
}

static inline void store_bf16(bf16* to, Floats values) { *(HalvesAt*)to = narrow(values); }

// sum + low · low + high · high, lane by lane, of pairs of bf16.
static inline Floats dot_pairs(Floats sum, Words left, Words right) {
#ifdef __AVX512BF16__
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)left, (__m512bh)right);
#else
    sum += (Floats)(left & 0xffff0000) * (Floats)(right & 0xffff0000);
    return sum + (Floats)(left << 16) * (Floats)(right << 16);
#endif
}

// sum + the four products of unsigned bytes on the left with signed bytes on the right, lane by lane.
static inline Ints dot_bytes(Ints sum, Words left, Words right) {
#ifdef __AVX512VNNI__
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)left, (__m512i)right);
#elif defined(__AVX512BW__)
    // Even and odd bytes as 16-bit numbers: products of pairs are added in 32 bits, so that nothing saturates.
    __m512i even = _mm512_set1_epi16(0xff), l = (__m512i)left, r = (__m512i)right;
    __m512i r_even = _mm512_srai_epi16(_mm512_slli_epi16(r, 8), 8), r_odd = _mm512_srai_epi16(r, 8);
    __m512i first = _mm512_madd_epi16(_mm512_and_si512(l, even), r_even);
    return sum + (Ints)first + (Ints)_mm512_madd_epi16(_mm512_srli_epi16(l, 8), r_odd);
#else
    const __m256i *lefts = (const __m256i*)&left, *rights = (const __m256i*)&right;
    __m256i even = _mm256_set1_epi16(0xff);
    Ints products;
    for (int half = 0; half < 2; half++) {
        __m256i l = lefts[half], r = rights[half];
        __m256i r_even = _mm256_srai_epi16(_mm256_slli_epi16(r, 8), 8), r_odd = _mm256_srai_epi16(r, 8);
        __m256i first = _mm256_madd_epi16(_mm256_and_si256(l, even), r_even);
        __m256i both = _mm256_add_epi32(first, _mm256_madd_epi16(_mm256_srli_epi16(l, 8), r_odd));
        memcpy((char*)&products + 32 * half, &both, 32);
    }
    return sum + products;
#endif
}

static inline Floats load_fp16(const uint16_t* from) {
#ifdef __AVX512F__
    return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#else
    Floats wide;
    for (int half = 0; half < 2; half++) {
        __m256 part = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(from + 8 * half)));
        memcpy((char*)&wide + 32 * half, &part, 32);
    }
    return wide;
#endif
}

// Numbers of -128 … 127 as bytes.
static inline void store_bytes(int8_t* to, Ints values) {
    typedef int8_t Bytes __attribute__((vector_size(16), aligned(1), may_alias));
    *(Bytes*)to = __builtin_convertvector(values, Bytes);
}

static inline Floats max(Floats left, Floats right) { return left > right ? left : right; }

// Lanes in a fixed order: halves onto each other, 16 → 1.
static inline float sum_of(Floats values) {
#ifdef __AVX512F__
    return _mm512_reduce_add_ps((__m512)values);
#endif
    float lanes[kLanes];
    memcpy(lanes, &values, sizeof lanes);
    for (int width = kLanes / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}

static inline int32_t sum_of(Ints values) {
    int32_t sum = 0;
    for (int lane = 0; lane < kLanes; lane++) sum += values[lane];
    return sum;
}

static inline double sum_of(Doubles values) {
    double sum = 0;
    for (int lane = 0; lane < kLanes / 2; lane++) sum += values[lane];
    return sum;
}

// Bit i is what lane i of a comparison says.
static inline uint32_t bits_of(Ints compared) {
#ifdef __AVX512F__
    return _mm512_movepi32_mask((__m512i)compared);
#else
    __m256 halves[2];
    memcpy(halves, &compared, sizeof compared);
    return _mm256_movemask_ps(halves[0]) | _mm256_movemask_ps(halves[1]) << 8;
#endif
}

static inline float max_of(Floats values) {
#ifdef __AVX512F__
    return _mm512_reduce_max_ps((__m512)values);
#endif
    float lanes[kLanes];
    memcpy(lanes, &values, sizeof lanes);
    for (int width = kLanes / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
    return lanes[0];
}

// e^x by 2^n · polynomial of degree 6 on half a bit to either side (Taylor; error below 2e-7 relative).
// Below -87 it is 0, above 88 infinity is not reached; NaN stays NaN.
static inline Floats exp_of(Floats x) {
    Floats low = all(-87.0f), high = all(88.0f);
    Floats clamped = x < low ? low : x > high ? high : x;
    Floats scaled = clamped * 1.44269504f;
    Floats shifted = scaled + 12582912.0f;  // 1.5 · 2^23: the fraction falls off
    Floats whole = shifted - 12582912.0f;
    Floats rest = clamped - whole * 0.693145752f - whole * 1.42860677e-6f;
    Floats sum = all(1.0f / 720);
    sum = sum * rest + 1.0f / 120;
    sum = sum * rest + 1.0f / 24;
    sum = sum * rest + 1.0f / 6;
    sum = sum * rest + 0.5f;
    sum = sum * rest + 1.0f;
    sum = sum * rest + 1.0f;
    Floats power = (Floats)((__builtin_convertvector(whole, Ints) + 127) << 23);
    return x < low ? Floats{} : sum * power;
}

// e^x for x up to 0, by a polynomial of degree 13 (Taylor; error of a unit or two in the last place). In two steps at its
// end, so that numbers too small to be normal are not lost.
static inline Doubles exp_of(Doubles x) {
    const Doubles low = Doubles{} - 746.0;  // its power is 0
    Doubles clamped = x < low ? low : x;
    Doubles shifted = clamped * 1.4426950408889634 + 6755399441055744.0;  // 1.5 · 2^52: the fraction falls off
    Doubles whole = shifted - 6755399441055744.0;
    Doubles rest = clamped - whole * 6.93147180369123816490e-01 - whole * 1.90821492927058770002e-10;
    Doubles sum = Doubles{} + 1.0 / 6227020800;
    const double factors[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                              1.0 / 720,       1.0 / 120,      1.0 / 24,      1.0 / 6,      0.5,         1.0, 1.0};
    for (double factor : factors) sum = sum * rest + factor;
    Longs exponent = (Longs)shifted - (Longs)(Doubles{} + 6755399441055744.0), half = exponent >> 1;
    return sum * (Doubles)((half + 1023) << 52) * (Doubles)((exponent - half + 1023) << 52);
}

// 2^x for x up to 0, by a polynomial of degree 5 on half a unit to either side (error below 5e-7 relative). What would be
// no normal number is 0; NaN stays NaN.
static inline Floats power_of_two(Floats x) {
    Floats low = all(-127.0f);
    x = low > x ? low : x;
    Floats shifted = x + 12582912.0f;  // 1.5 · 2^23: the fraction falls off
    Floats whole = shifted - 12582912.0f, rest = x - whole;
    Floats sum = all(1.33857e-3f);
    sum = sum * rest + 9.66101e-3f;
    sum = sum * rest + 5.550367e-2f;
    sum = sum * rest + 2.4022421e-1f;
    sum = sum * rest + 6.9314719e-1f;
    sum = sum * rest + 1.0f;
    return sum * (Floats)(((Ints)shifted + 127) << 23);
}

}  // namespace loopwright
