//! Which instruction set the CPU kernels use, chosen once at run time.

use std::fmt;
use std::str::FromStr;

/// An instruction set with its own instances of the kernels. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust with `f32::mul_add`: the reference, for any machine; slow without hardware FMA.
    Scalar,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 (F, BW, DQ, VL).
    Avx512,
}

impl Isa {
    /// The best one this machine has.
    pub fn detect() -> Isa {
        *Isa::available().last().unwrap_or(&Isa::Scalar)
    }

    /// All that this machine can run, slowest first.
    pub fn available() -> Vec<Isa> {
        let mut all = vec![Isa::Scalar];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                all.push(Isa::Avx2);
                let wide = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
                if wide && is_x86_feature_detected!("avx512dq") && is_x86_feature_detected!("avx512vl") {
                    all.push(Isa::Avx512);
                }
            }
        }
        all
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        })
    }
}

impl FromStr for Isa {
    type Err = String;

    fn from_str(s: &str) -> Result<Isa, String> {
        let isa = match s {
            "scalar" => Isa::Scalar,
            "avx2" => Isa::Avx2,
            "avx512" => Isa::Avx512,
            _ => return Err(format!("unknown instruction set '{s}'; use scalar, avx2 or avx512")),
        };
        if Isa::available().contains(&isa) {
            Ok(isa)
        } else {
            Err(format!("this machine has no {isa}; leave the setting out to use the best it has"))
        }
    }
}

/// Makes `name(isa, args)` out of an `#[inline(always)]` body: one instance of the body per instruction set.
macro_rules! per_isa {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:path) => {
        $(#[$meta])*
        $vis fn $name(isa: $crate::ops::cpu::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    $body($($arg),*)
                }
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
                fn avx512($($arg: $ty),*) $(-> $ret)? {
                    $body($($arg),*)
                }
                match isa {
                    $crate::ops::cpu::isa::Isa::Scalar => {}
                    // SAFETY: an Isa other than Scalar is only made after the features were detected.
                    $crate::ops::cpu::isa::Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    // SAFETY: as above.
                    $crate::ops::cpu::isa::Isa::Avx512 => return unsafe { avx512($($arg),*) },
                }
            }
            let _ = isa;
            $body($($arg),*)
        }
    };
}
pub(super) use per_isa;
