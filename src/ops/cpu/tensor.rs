//! Memory of the CPU backend: aligned buffers and row-major activations.

/// A zeroed buffer of `T` (f32 or u16) that starts on a cache line.
pub(super) struct Aligned<T> {
    /// Somewhat more words than needed; the buffer starts at the first one on a cache line. A vector of zero words comes from the system
    /// untouched, so pages that are never written cost no memory.
    words: Vec<u32>,
    first: usize,
    len: usize,
    of: std::marker::PhantomData<T>,
}

/// Bytes of a cache line.
const LINE: usize = 64;

/// Types for which every bit pattern is a value, no larger than a word.
pub(super) trait Plain: Copy {}
impl Plain for f32 {}
impl Plain for u16 {}

impl<T: Plain> Aligned<T> {
    /// `len` zeros.
    pub(super) fn zeroed(len: usize) -> Self {
        let words = vec![0u32; (len * size_of::<T>()).div_ceil(4) + LINE / 4];
        let first = (LINE - words.as_ptr() as usize % LINE) % LINE / 4;
        Aligned { words, first, len, of: std::marker::PhantomData }
    }
}

impl<T: Plain> std::ops::Deref for Aligned<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: from `first` on the words hold at least `len` values of T, a type for which all bits are valid and whose alignment is at
        // most a word's.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().add(self.first).cast(), self.len) }
    }
}

impl<T: Plain> std::ops::DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in deref; &mut self makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().add(self.first).cast(), self.len) }
    }
}

/// Activations `[rows, cols]`, each row padded to whole panels of 16 so that kernels may store whole vectors.
pub struct Tensor {
    pub(super) data: Aligned<f32>,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) stride: usize,
    capacity: usize,
}

impl Tensor {
    pub(super) fn new(capacity: usize, cols: usize) -> Self {
        // A stride of whole pages would put a column of rows into one set of every cache.
        let stride = match cols.next_multiple_of(16) {
            pages if pages.is_multiple_of(1024) => pages + 16,
            stride => stride,
        };
        Tensor { data: Aligned::zeroed(capacity * stride), rows: capacity, cols, stride, capacity }
    }

    pub(super) fn set_rows(&mut self, rows: usize) {
        assert!(rows <= self.capacity, "a tensor of {} rows was asked to hold {rows}", self.capacity);
        self.rows = rows;
    }

    /// Rows in use and columns.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// Row `r`, without its padding.
    pub fn row(&self, r: usize) -> &[f32] {
        assert!(r < self.rows);
        &self.data[r * self.stride..][..self.cols]
    }

    /// Row `r`, without its padding.
    pub fn row_mut(&mut self, r: usize) -> &mut [f32] {
        assert!(r < self.rows);
        &mut self.data[r * self.stride..][..self.cols]
    }
}

/// A pointer that workers share to write disjoint parts of one buffer.
#[derive(Clone, Copy)]
pub(super) struct Shared<T>(pub(super) *mut T);
// SAFETY: tasks write disjoint parts; each use says which.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The pointer (a method, so that closures capture the whole wrapper).
    pub(super) fn get(&self) -> *mut T {
        self.0
    }
}
