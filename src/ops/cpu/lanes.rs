//! Sixteen f32 lanes: the unit in which panels, attention and values are computed. One trait, three instances with the same bits.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Sixteen f32 values, elementwise operations only.
///
/// # Safety
/// Callers guarantee that pointers are valid for 16 elements and, for the vector instances, that the machine has the features. All
/// methods are meant to be inlined into a function that enables them.
pub(super) trait Lanes: Copy {
    unsafe fn zero() -> Self;
    unsafe fn load(p: *const f32) -> Self;
    unsafe fn load_bf16(p: *const u16) -> Self;
    unsafe fn store(self, p: *mut f32);
    /// `self + s * v`, rounded once.
    unsafe fn fma(self, s: f32, v: Self) -> Self;
}

/// The reference: an array and `mul_add`.
#[derive(Clone, Copy)]
pub(super) struct Plain([f32; 16]);

impl Lanes for Plain {
    #[inline(always)]
    unsafe fn zero() -> Self {
        Plain([0.0; 16])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller guarantees 16 readable values; arrays of f32 have no padding.
        Plain(unsafe { p.cast::<[f32; 16]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: the caller guarantees 16 readable values.
        let bits = unsafe { p.cast::<[u16; 16]>().read_unaligned() };
        Plain(bits.map(|b| f32::from_bits(u32::from(b) << 16)))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller guarantees 16 writable values.
        unsafe { p.cast::<[f32; 16]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn fma(self, s: f32, v: Self) -> Self {
        let mut out = self.0;
        for (o, w) in out.iter_mut().zip(v.0) {
            *o = s.mul_add(w, *o);
        }
        Plain(out)
    }
}

/// Two 256-bit vectors.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Avx2(__m256, __m256);

#[cfg(target_arch = "x86_64")]
impl Lanes for Avx2 {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller guarantees AVX2 and FMA, here and below.
        unsafe { Avx2(_mm256_setzero_ps(), _mm256_setzero_ps()) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller guarantees 16 readable values.
        unsafe { Avx2(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: the caller guarantees 16 readable values.
        unsafe {
            let widen = |q: *const u16| _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q.cast())), 16));
            Avx2(widen(p), widen(p.add(8)))
        }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller guarantees 16 writable values.
        unsafe {
            _mm256_storeu_ps(p, self.0);
            _mm256_storeu_ps(p.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn fma(self, s: f32, v: Self) -> Self {
        // SAFETY: the caller guarantees AVX2 and FMA.
        unsafe {
            let s = _mm256_set1_ps(s);
            Avx2(_mm256_fmadd_ps(s, v.0, self.0), _mm256_fmadd_ps(s, v.1, self.1))
        }
    }
}

/// One 512-bit vector.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Avx512(__m512);

#[cfg(target_arch = "x86_64")]
impl Lanes for Avx512 {
    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller guarantees AVX-512, here and below.
        unsafe { Avx512(_mm512_setzero_ps()) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller guarantees 16 readable values.
        unsafe { Avx512(_mm512_loadu_ps(p)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: the caller guarantees 16 readable values.
        unsafe { Avx512(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())), 16))) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller guarantees 16 writable values.
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn fma(self, s: f32, v: Self) -> Self {
        // SAFETY: the caller guarantees AVX-512.
        unsafe { Avx512(_mm512_fmadd_ps(_mm512_set1_ps(s), v.0, self.0)) }
    }
}
