//! Memory of the CPU backend: aligned buffers and row-major activations.

/// One cache line, the unit of allocation.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u32; 16]);

/// A zeroed buffer of `T` (f32 or u16) that starts on a cache line.
pub(super) struct Aligned<T> {
    lines: Vec<Line>,
    len: usize,
    of: std::marker::PhantomData<T>,
}

/// Types for which every bit pattern is a value.
pub(super) trait Plain: Copy {}
impl Plain for f32 {}
impl Plain for u16 {}

impl<T: Plain> Aligned<T> {
    /// `len` zeros. Untouched pages cost no memory.
    pub(super) fn zeroed(len: usize) -> Self {
        let lines = (len * size_of::<T>()).div_ceil(size_of::<Line>());
        // A vector of zero bytes of an all-integer type is allocated with calloc.
        Aligned { lines: zeroed_lines(lines), len, of: std::marker::PhantomData }
    }
}

fn zeroed_lines(n: usize) -> Vec<Line> {
    if n == 0 {
        return Vec::new();
    }
    let layout = match std::alloc::Layout::array::<Line>(n) {
        Ok(layout) => layout,
        Err(_) => std::alloc::handle_alloc_error(std::alloc::Layout::new::<Line>()),
    };
    // SAFETY: the layout is not empty; the pointer is checked; zero bytes are valid Lines; the vector frees it with the same layout.
    unsafe {
        let p = std::alloc::alloc_zeroed(layout).cast::<Line>();
        if p.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        Vec::from_raw_parts(p, n, n)
    }
}

impl<T: Plain> std::ops::Deref for Aligned<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: the lines hold at least len values of T, a type for which all bits are valid and whose alignment is below a line's.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl<T: Plain> std::ops::DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in deref; &mut self makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
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
        let stride = cols.next_multiple_of(16);
        Tensor { data: Aligned::zeroed(capacity * stride), rows: capacity, cols, stride, capacity }
    }

    pub(super) fn set_rows(&mut self, rows: usize) {
        assert!(rows <= self.capacity, "a tensor of {} rows was asked to hold {rows}", self.capacity);
        self.rows = rows;
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
