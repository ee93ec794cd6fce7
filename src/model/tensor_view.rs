//! A tensor as it lies in a file: type, shape and little-endian bytes at any alignment, with the conversions that readers need.

use std::fmt;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// Type of a stored number. Weights are one of the first three; the others occur in reference files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Dtype {
    /// bfloat16: 8 bits of exponent, 7 of fraction.
    Bf16,
    /// IEEE 754 half precision.
    F16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
    /// Signed, 32 bits.
    I32,
    /// Signed, 64 bits.
    I64,
}

impl Dtype {
    /// The dtype of this name in a safetensors header (`BF16`), if it is one of these.
    pub fn from_name(name: &str) -> Option<Self> {
        use Dtype::*;
        [Bf16, F16, F32, F64, I32, I64].into_iter().find(|dtype| dtype.name() == name)
    }

    /// Its name in a safetensors header.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::Bf16 => "BF16",
            Dtype::F16 => "F16",
            Dtype::F32 => "F32",
            Dtype::F64 => "F64",
            Dtype::I32 => "I32",
            Dtype::I64 => "I64",
        }
    }

    /// Bytes of one number.
    pub fn size(self) -> usize {
        match self {
            Dtype::Bf16 | Dtype::F16 => 2,
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::F64 | Dtype::I64 => 8,
        }
    }

    /// Whether weights may be stored in it.
    pub fn is_weight(self) -> bool {
        matches!(self, Dtype::Bf16 | Dtype::F16 | Dtype::F32)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A tensor within a mapped file.
#[derive(Clone, Debug)]
pub struct TensorView<'a> {
    /// Name as in the file.
    pub name: &'a str,
    /// Type of the numbers.
    pub dtype: Dtype,
    /// Sizes of the dimensions, outermost first; rows are contiguous. Empty for a single number.
    pub shape: Vec<usize>,
    /// The numbers, little-endian, at any alignment. Exactly the bytes that dtype and shape need.
    pub bytes: &'a [u8],
}

impl TensorView<'_> {
    /// How many numbers it holds.
    pub fn num_elements(&self) -> usize {
        self.bytes.len() / self.dtype.size()
    }

    /// The numbers as f32: exact from BF16, F16 and F32, rounded to nearest from the others.
    pub fn to_f32(&self) -> Vec<f32> {
        match self.dtype {
            Dtype::Bf16 => self.map(|b| bf16::from_le_bytes(b).to_f32()),
            Dtype::F16 => {
                let mut numbers = vec![0.0; self.num_elements()];
                self.map(f16::from_le_bytes).convert_to_f32_slice(&mut numbers);
                numbers
            }
            Dtype::F32 => self.map(f32::from_le_bytes),
            Dtype::F64 => self.map(|b| f64::from_le_bytes(b) as f32),
            Dtype::I32 => self.map(|b| i32::from_le_bytes(b) as f32),
            Dtype::I64 => self.map(|b| i64::from_le_bytes(b) as f32),
        }
    }

    /// The numbers as i64, if they are stored as integers.
    pub fn to_i64(&self) -> Option<Vec<i64>> {
        match self.dtype {
            Dtype::I32 => Some(self.map(|b| i64::from(i32::from_le_bytes(b)))),
            Dtype::I64 => Some(self.map(i64::from_le_bytes)),
            _ => None,
        }
    }

    /// The bits of the numbers, if they are stored as BF16.
    pub fn bf16_bits(&self) -> Option<Vec<u16>> {
        (self.dtype == Dtype::Bf16).then(|| self.map(u16::from_le_bytes))
    }

    /// Flat index of the first NaN or infinity. Integers are always finite.
    pub fn first_non_finite(&self) -> Option<usize> {
        // Not finite: the exponent's bits are all ones.
        match self.dtype {
            Dtype::Bf16 => self.position(|b| u16::from_le_bytes(b) & 0x7f80 == 0x7f80),
            Dtype::F16 => self.position(|b| u16::from_le_bytes(b) & 0x7c00 == 0x7c00),
            Dtype::F32 => self.position(|b| u32::from_le_bytes(b) & 0x7f80_0000 == 0x7f80_0000),
            Dtype::F64 => self.position(|b| u64::from_le_bytes(b) & 0x7ff0_0000_0000_0000 == 0x7ff0_0000_0000_0000),
            Dtype::I32 | Dtype::I64 => None,
        }
    }

    /// The number at a flat index as f64; `None` past the end.
    pub fn value(&self, index: usize) -> Option<f64> {
        let size = self.dtype.size();
        let bytes = self.bytes.get(index.checked_mul(size)?..)?.get(..size)?;
        let one = TensorView { name: self.name, dtype: self.dtype, shape: Vec::new(), bytes };
        match self.dtype {
            Dtype::F64 => one.map(f64::from_le_bytes).pop(),
            _ => one.to_f32().pop().map(f64::from),
        }
    }

    fn map<const N: usize, T>(&self, convert: impl Fn([u8; N]) -> T) -> Vec<T> {
        self.bytes.as_chunks::<N>().0.iter().map(|&bytes| convert(bytes)).collect()
    }

    /// First index whose bytes match. Looks at whole blocks without a branch per number, which the compiler turns into vector code.
    fn position<const N: usize>(&self, matches: impl Fn([u8; N]) -> bool) -> Option<usize> {
        const BLOCK: usize = 2048;
        for (i, block) in self.bytes.as_chunks::<N>().0.chunks(BLOCK).enumerate() {
            if block.iter().fold(false, |any, &bytes| any | matches(bytes)) {
                return block.iter().position(|&bytes| matches(bytes)).map(|at| i * BLOCK + at);
            }
        }
        None
    }
}
