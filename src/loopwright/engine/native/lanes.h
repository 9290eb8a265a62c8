// Sixteen lanes of 32 bits, or eight of 64, as one value: a register with avx512, two with avx2.
//
// With avx512 they are GCC's vector extensions. Without, a vector of 512 bits would be kept in memory, and choices between two
// made lane by lane, so there a pair of vectors of 256 bits has the same operators.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace loopwright {

// In memory of any alignment, and over whatever type it was written as.
template <class Vector>
static inline Vector load_as(const void* from) {
    Vector values;
    memcpy(&values, from, sizeof values);
    return values;
}

template <class Vector>
static inline void store_as(void* to, Vector values) {
    memcpy(to, &values, sizeof values);
}

#ifdef __AVX512F__

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef double Doubles __attribute__((vector_size(64)));
typedef int64_t Longs __attribute__((vector_size(64)));

// Lanes of `yes` where a comparison is true, else of `no`.
template <class Compared, class Value>
static inline Value select(Compared is_true, Value yes, Value no) {
    return is_true ? yes : no;
}

template <class To, class From>
static inline To converted(From values) {  // numbers, lane by lane
    return __builtin_convertvector(values, To);
}

template <class Vector>
static inline Vector load_lanes(const void* from) {
    return load_as<Vector>(from);
}

template <class Vector>
static inline void store_lanes(void* to, Vector values) {
    store_as(to, values);
}

#else

template <class T>
struct Pair {
    typedef T Half __attribute__((vector_size(32)));
    Half low, high;

    T operator[](int lane) const {
        constexpr int kHalf = sizeof(Half) / sizeof(T);
        return lane < kHalf ? low[lane] : high[lane - kHalf];
    }
    template <class U>
    explicit operator Pair<U>() const {  // the same bits
        return {(typename Pair<U>::Half)low, (typename Pair<U>::Half)high};
    }
    friend Pair operator-(Pair a) { return {-a.low, -a.high}; }
    friend Pair operator~(Pair a) { return {~a.low, ~a.high}; }

#define LOOPWRIGHT_EACH_HALF(RESULT, OPERATOR)                                                                            \
    friend RESULT operator OPERATOR(Pair a, Pair b) { return {a.low OPERATOR b.low, a.high OPERATOR b.high}; }            \
    friend RESULT operator OPERATOR(Pair a, T b) { return {a.low OPERATOR b, a.high OPERATOR b}; }                        \
    friend RESULT operator OPERATOR(T a, Pair b) { return {a OPERATOR b.low, a OPERATOR b.high}; }
    LOOPWRIGHT_EACH_HALF(Pair, +)
    LOOPWRIGHT_EACH_HALF(Pair, -)
    LOOPWRIGHT_EACH_HALF(Pair, *)
    LOOPWRIGHT_EACH_HALF(Pair, /)
    LOOPWRIGHT_EACH_HALF(Pair, &)
    LOOPWRIGHT_EACH_HALF(Pair, |)
    LOOPWRIGHT_EACH_HALF(Pair, <<)
    LOOPWRIGHT_EACH_HALF(Pair, >>)
    // A comparison's lanes are integers as wide as its sides': all ones where it is true.
    typedef Pair<std::conditional_t<sizeof(T) == 4, int32_t, int64_t>> Compared;
    LOOPWRIGHT_EACH_HALF(Compared, <)
    LOOPWRIGHT_EACH_HALF(Compared, <=)
    LOOPWRIGHT_EACH_HALF(Compared, >)
    LOOPWRIGHT_EACH_HALF(Compared, >=)
    LOOPWRIGHT_EACH_HALF(Compared, ==)
    LOOPWRIGHT_EACH_HALF(Compared, !=)
#undef LOOPWRIGHT_EACH_HALF

    template <class Other>
    Pair& operator+=(Other other) { return *this = *this + other; }
    template <class Other>
    Pair& operator|=(Other other) { return *this = *this | other; }
};

typedef Pair<float> Floats;
typedef Pair<int32_t> Ints;
typedef Pair<uint32_t> Words;
typedef Pair<double> Doubles;
typedef Pair<int64_t> Longs;

template <class T>
static inline Pair<T> select(typename Pair<T>::Compared is_true, Pair<T> yes, Pair<T> no) {
    return {is_true.low ? yes.low : no.low, is_true.high ? yes.high : no.high};
}

template <class To, class From>
static inline To converted(From values) {
    typedef typename To::Half Half;
    return {__builtin_convertvector(values.low, Half), __builtin_convertvector(values.high, Half)};
}

// Half by half: as a whole they would go through the stack.
template <class Vector>
static inline Vector load_lanes(const void* from) {
    typedef typename Vector::Half Half;
    return {load_as<Half>(from), load_as<Half>((const char*)from + sizeof(Half))};
}

template <class Vector>
static inline void store_lanes(void* to, Vector values) {
    store_as(to, values.low);
    store_as((char*)to + sizeof values.low, values.high);
}

#endif

}  // namespace loopwright
