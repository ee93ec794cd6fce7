//! Promises of the table of operations, on the CPU: every operation against plain f64 arithmetic over a matrix of shapes, and the same
//! bits whatever the instruction set, the number of threads, the rows beside a row, and the chunks a sequence was cut into.

mod attention;
mod backward;
mod copies;
mod linear;
mod math;
mod pool;
mod rows;
