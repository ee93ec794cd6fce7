//! What this machine could do at most: read bandwidth and FMA rate, measured with the instruction set that the kernels use. Benches quote
//! their figures as fractions of these.

use std::time::Instant;

use super::isa::{Isa, per_isa};
#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512};
use super::lanes::{Lanes, Plain};

/// Ceilings of a machine with some number of threads.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Ceilings {
    /// Bytes read from memory per second, in units of 10^9.
    pub read_gb_per_s: f64,
    /// f32 FMA, two operations each, per second, in units of 10^9.
    pub fma_gflop_per_s: f64,
}

#[inline(always)]
fn sum_body(x: &[f32]) -> f32 {
    let mut lanes = [0f32; 128];
    for chunk in x.as_chunks::<128>().0 {
        for j in 0..128 {
            lanes[j] += chunk[j];
        }
    }
    lanes.iter().sum()
}
per_isa! {
    fn sum(x: &[f32]) -> f32 = sum_body
}

/// `C` independent chains of `n` FMA on 16 lanes.
#[inline(always)]
fn chains<L: Lanes, const C: usize>(n: usize) -> f32 {
    let (x, mut out) = ([1e-4f32; 16], [0f32; 16]);
    // SAFETY: the arrays hold 16 values; callers have the features of L.
    unsafe {
        let v = L::load(x.as_ptr());
        let mut acc = [L::zero(); C];
        for _ in 0..n {
            for a in &mut acc {
                *a = a.fma(0.999, v);
            }
            // Keeps the loop from being computed at compile time.
            std::hint::black_box(&mut out);
        }
        for a in acc {
            let mut part = [0f32; 16];
            a.store(part.as_mut_ptr());
            for (o, p) in out.iter_mut().zip(part) {
                *o += p;
            }
        }
    }
    out.iter().sum()
}

/// Enough to fill two pipes of four to five cycles, and as many as the sixteen registers hold beside their factors: 16 lanes are two of them.
const CHAINS: usize = 6;
/// The same where 16 lanes are one of 32 registers.
#[cfg(target_arch = "x86_64")]
const CHAINS_AVX512: usize = 12;

fn chains_of(isa: Isa) -> usize {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => CHAINS_AVX512,
        _ => CHAINS,
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn chains_avx512(n: usize) -> f32 {
    chains::<Avx512, CHAINS_AVX512>(n)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn chains_avx2(n: usize) -> f32 {
    chains::<Avx2, CHAINS>(n)
}

fn fma(isa: Isa, n: usize) -> f32 {
    match isa {
        // SAFETY: an Isa other than Scalar is only made after the features were detected.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { chains_avx512(n) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { chains_avx2(n) },
        _ => chains::<Plain, CHAINS>(n),
    }
}

/// Seconds that `work(thread)` takes on all threads at once: the best of `tries`.
fn seconds(threads: usize, tries: usize, work: impl Fn(usize) + Sync) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..tries {
        let barrier = std::sync::Barrier::new(threads);
        let times = std::sync::Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for t in 0..threads {
                let (barrier, times, work) = (&barrier, &times, &work);
                scope.spawn(move || {
                    barrier.wait();
                    let start = Instant::now();
                    work(t);
                    times.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(start.elapsed().as_secs_f64());
                });
            }
        });
        let longest = times.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).into_iter().fold(0.0, f64::max);
        best = best.min(longest);
    }
    best
}

/// Measures; takes about two seconds and 256 MiB.
pub fn measure(isa: Isa, threads: usize) -> Ceilings {
    const BYTES: usize = 256 << 20;
    let per_thread = BYTES / threads / 4;
    let buffers: Vec<Vec<f32>> = (0..threads).map(|t| vec![t as f32 + 1.0; per_thread]).collect();
    let read = seconds(threads, 8, |t| {
        std::hint::black_box(sum(isa, &buffers[t]));
    });
    let n = if isa == Isa::Scalar { 200_000 } else { 10_000_000 };
    let arithmetic = seconds(threads, 3, |_| {
        std::hint::black_box(fma(isa, n));
    });
    Ceilings {
        read_gb_per_s: (per_thread * threads * 4) as f64 / read / 1e9,
        fma_gflop_per_s: (threads * n * chains_of(isa) * 16 * 2) as f64 / arithmetic / 1e9,
    }
}
