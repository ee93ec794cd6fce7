//! Every kernel against the CPU's operation: near enough, the same bits for a row whatever is beside it, in three orders of warps.

mod attention;
mod linear;
mod rows;
mod sampling;

use libtest_mimic::Trial;

/// All of them.
pub fn trials() -> Vec<Trial> {
    [linear::trials(), rows::trials(), attention::trials(), sampling::trials()].into_iter().flatten().collect()
}
