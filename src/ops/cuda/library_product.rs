//! The best that cuBLASLt does with a product when nobody asks what bits it gives: a limit to compare with, never part of a step.

use super::cublaslt::{Algorithm, Library, Multiplier};
use super::gemm::Product;
use super::gemm_choice::WeightShape;
use super::{CudaOps, Matrix, Tensor};

/// Candidates that are tried.
const TRIED: usize = 4;

impl CudaOps {
    /// cuBLASLt's products of `x` by these matrices of one shape, with each of the algorithms that it proposes for this number of rows: `seconds` is
    /// given what starts them all, and says how long it took. Returns the least of those; `None` where there is no library or no algorithm.
    pub fn library_products(
        &mut self,
        x: &Tensor,
        matrices: &[&Matrix],
        out: &mut Tensor,
        mut seconds: impl FnMut(&mut Self, &mut dyn FnMut(&mut Self)) -> Option<f64>,
    ) -> Option<f64> {
        let first = matrices.first()?;
        let shape = WeightShape { outputs: first.outputs, inputs: first.inputs, wide: out.wide, back: false };
        assert!(x.cols == shape.inputs && out.cols == shape.outputs && out.rows == x.rows);
        assert!(matrices.iter().all(|m| (m.outputs, m.inputs) == (shape.outputs, shape.inputs)), "matrices of one shape");
        let library = Library::open(&self.device).ok()?;
        let mut multiplier = Multiplier::new(&library, shape).ok()?;
        let proposed: Vec<Algorithm> = multiplier.proposed(x.rows).ok()?;
        let mut best: Option<f64> = None;
        for algorithm in proposed.iter().take(TRIED) {
            let mut refused = false;
            let took = seconds(self, &mut |ops| {
                for matrix in matrices {
                    let product = Product { shape, rows: x.rows, out: out.buffer.ptr, x: x.narrow(), w: matrix.buffer.ptr };
                    // SAFETY: the tensors and the matrix have this shape, and outlive the wait for the time.
                    refused |= unsafe { multiplier.multiply(algorithm, &ops.queue, &product) }.is_err();
                }
            });
            if let (Some(took), false) = (took, refused) {
                best = Some(best.map_or(took, |b| b.min(took)));
            }
        }
        best
    }
}
