// What the kernels need of vectors, whatever the instruction set. Compiled once for each set (see build.py).
//
// Plain arithmetic is that of lanes.h. Dot products of pairs and of quadruples have instructions of their own with avx512, and
// a stand-in where they are missing; so have conversions from and to halves.
#pragma once
#include <cmath>
#include <type_traits>

#include "lanes.h"

namespace loopwright {

constexpr int kLanes = 16;
typedef uint16_t bf16;
typedef uint16_t Halves __attribute__((vector_size(32)));

static inline Floats load(const float* from) { return load_lanes<Floats>(from); }
static inline void store(float* to, Floats value) { store_lanes(to, value); }
static inline Words load_words(const void* from) { return load_lanes<Words>(from); }
static inline Ints load_ints(const void* from) { return load_lanes<Ints>(from); }
static inline Doubles load_doubles(const float* from) {
#ifdef __AVX512F__
    return (Doubles)_mm512_cvtps_pd(_mm256_loadu_ps(from));
#else
    return {(Doubles::Half)_mm256_cvtps_pd(_mm_loadu_ps(from)), (Doubles::Half)_mm256_cvtps_pd(_mm_loadu_ps(from + 4))};
#endif
}
static inline Floats all(float value) { return Floats{} + value; }
static inline Words all_words(uint32_t value) { return Words{} + value; }
static inline Ints lane_numbers() {
    static const int32_t kNumbers[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return load_ints(kNumbers);
}

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
    __m128i low = _mm256_castsi256_si128((__m256i)values), high = _mm256_extracti128_si256((__m256i)values, 1);
    return (Floats)(Words{(Words::Half)_mm256_cvtepu16_epi32(low), (Words::Half)_mm256_cvtepu16_epi32(high)} << 16);
#endif
}

static inline Floats load_bf16(const bf16* from) { return widen(load_as<Halves>(from)); }

// The low 16 bits of each lane, whose high ones are zero.
static inline Halves low_halves(Words values) {
#ifdef __AVX512F__
    return (Halves)_mm512_cvtepi32_epi16((__m512i)values);
#else
    return (Halves)_mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)values.low, (__m256i)values.high), 0xd8);
#endif
}

// To nearest, ties to even. A NaN stays one: its quiet bit is set before the low half is cut.
static inline Halves narrow(Floats values) {
#ifdef __AVX512BF16__
    return (Halves)_mm512_cvtneps_pbh((__m512)values);
#else
    Words bits = (Words)values;
    Words rounded = bits + 0x7fff + ((bits >> 16) & 1);
    Words is_nan = (Words)(values != values);
    return low_halves(((rounded & ~is_nan) | ((bits | 0x400000) & is_nan)) >> 16);
#endif
}

static inline void store_bf16(bf16* to, Floats values) { store_as(to, narrow(values)); }

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
    auto products = [](Words::Half left, Words::Half right) {
        __m256i l = (__m256i)left, r = (__m256i)right, even = _mm256_set1_epi16(0xff);
        __m256i r_even = _mm256_srai_epi16(_mm256_slli_epi16(r, 8), 8), r_odd = _mm256_srai_epi16(r, 8);
        __m256i first = _mm256_madd_epi16(_mm256_and_si256(l, even), r_even);
        return (Ints::Half)_mm256_add_epi32(first, _mm256_madd_epi16(_mm256_srli_epi16(l, 8), r_odd));
    };
    return sum + Ints{products(left.low, right.low), products(left.high, right.high)};
#endif
}

static inline Floats load_fp16(const uint16_t* from) {
#ifdef __AVX512F__
    return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#else
    auto half = [&](int at) { return (Floats::Half)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(from + at))); };
    return {half(0), half(8)};
#endif
}

// Numbers of -128 … 127 as bytes.
static inline void store_bytes(int8_t* to, Ints values) {
#ifdef __AVX512F__
    _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8((__m512i)values));
#else
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32((__m256i)values.low, (__m256i)values.high), 0xd8);
    _mm_storeu_si128((__m128i*)to, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
#endif
}

static inline Floats max(Floats left, Floats right) {  // left > right ? left : right
#ifdef __AVX512F__
    return (Floats)_mm512_max_ps((__m512)left, (__m512)right);
#else
    return {(Floats::Half)_mm256_max_ps((__m256)left.low, (__m256)right.low),
            (Floats::Half)_mm256_max_ps((__m256)left.high, (__m256)right.high)};
#endif
}

// Lanes in a fixed order: halves onto each other, 16 → 1.
static inline float sum_of(Floats values) {
#ifdef __AVX512F__
    return _mm512_reduce_add_ps((__m512)values);
#endif
    float lanes[kLanes];
    store(lanes, values);
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
    return _mm256_movemask_ps((__m256)compared.low) | _mm256_movemask_ps((__m256)compared.high) << 8;
#endif
}

static inline float max_of(Floats values) {
#ifdef __AVX512F__
    return _mm512_reduce_max_ps((__m512)values);
#endif
    float lanes[kLanes];
    store(lanes, values);
    for (int width = kLanes / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
    return lanes[0];
}

// That of a wide number, since the other is younger in glibc than the oldest Linux that a wheel is for.
static inline double log_of(double x) { return (double)std::log((long double)x); }

// e^x by 2^n · polynomial of degree 6 on half a bit to either side (Taylor; error below 2e-7 relative).
// Below -87 it is 0, above 88 infinity is not reached; NaN stays NaN.
static inline Floats exp_of(Floats x) {
    Floats low = all(-87.0f), high = all(88.0f);
    Floats clamped = select(x < low, low, select(x > high, high, x));
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
    Floats power = (Floats)((converted<Ints>(whole) + 127) << 23);
    return select(x < low, Floats{}, sum * power);
}

// e^x for x up to 0, by a polynomial of degree 13 (Taylor; error of a unit or two in the last place). In two steps at its
// end, so that numbers too small to be normal are not lost.
static inline Doubles exp_of(Doubles x) {
    const Doubles low = Doubles{} - 746.0;  // its power is 0
    Doubles clamped = select(x < low, low, x);
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
    x = max(all(-127.0f), x);
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

// Calls `call` with the count as a type: loops over it are unrolled, and what they add up stays in registers.
template <int Most, class Call>
static inline void with_count(int count, Call call) {
    if constexpr (Most > 1)
        if (count < Most) return with_count<Most - 1>(count, call);
    call(std::integral_constant<int, Most>{});
}

}  // namespace loopwright
