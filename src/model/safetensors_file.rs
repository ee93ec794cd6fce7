//! One safetensors file, memory-mapped, with a header that is checked before anything in it is believed.
//!
//! The format: a little-endian u64 with the header's length, the header (JSON: name -> dtype, shape, [begin, end) offsets into the data),
//! the data. The `safetensors` crate's reader keeps the last of two tensors with one name and rarely says which tensor is wrong, so the
//! header is checked here, by the same rules (no gap, no overlap, nothing after the last tensor) and with names in the sentences.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use super::error::ModelError;
use super::files;
use super::tensor_view::{Dtype, TensorView};

/// Bytes of the header's length, at the start of the file.
const LENGTH_BYTES: usize = 8;
/// Largest header that is read: the limit of the `safetensors` crate.
const MAX_HEADER_BYTES: usize = 100_000_000;
/// Most dimensions of a tensor.
const MAX_DIMENSIONS: usize = 8;
/// Longest name of a tensor in bytes; sentences quote names, so they must be of one line too.
const MAX_NAME_BYTES: usize = 512;

/// A safetensors file, open for reading by name.
///
/// The file stays mapped while this lives. Whoever replaces it must write a new file and rename it over the old one: shortening a mapped
/// file ends the process that reads it (SIGBUS), as with every reader that maps files.
#[derive(Debug)]
pub struct SafetensorsFile {
    path: PathBuf,
    map: Mmap,
    /// In the order of the data.
    tensors: Vec<Place>,
    by_name: HashMap<String, usize>,
}

/// Where a tensor lies. `begin..end` are bytes of the whole file.
#[derive(Debug)]
struct Place {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    begin: usize,
    end: usize,
}

/// A tensor as the header describes it; offsets count from the end of the header.
#[derive(Deserialize)]
#[serde(expecting = "an object with `dtype`, `shape` and `data_offsets`")]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

impl SafetensorsFile {
    /// Maps a file and checks its header. Tensors may be bf16, f16, f32, f64, i64 or i32; others are refused by name.
    pub fn open(path: &Path) -> Result<Self, ModelError> {
        Self::open_or_advise(path, "check the path")
    }

    /// As [`SafetensorsFile::open`]; `advice` ends the sentence if the file is not there.
    pub(super) fn open_or_advise(path: &Path, advice: &str) -> Result<Self, ModelError> {
        let (file, len) = files::open(path, advice)?;
        if len < LENGTH_BYTES as u64 {
            return Err(ModelError::file(path, format!("holds {len} bytes, too few for a safetensors file; download or export it again")));
        }
        // SAFETY: the map is private and read-only. What the type cannot rule out, another process that shortens the file meanwhile, is
        // stated in the documentation of `SafetensorsFile`; writing into it meanwhile changes numbers, and no number is trusted.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| {
            ModelError::file(path, format!("cannot be mapped into memory ({error}); check the free address space and the disk"))
        })?;
        let tensors = read_header(path, &map)?;
        let by_name = tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.clone(), i)).collect();
        Ok(SafetensorsFile { path: path.to_owned(), map, tensors, by_name })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size of the file in bytes.
    pub fn num_bytes(&self) -> usize {
        self.map.len()
    }

    /// Whether it holds a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// All tensors, in the order of the data.
    pub fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        self.tensors.iter().map(|place| self.view(place))
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, ModelError> {
        match self.by_name.get(name) {
            Some(&i) => Ok(self.view(&self.tensors[i])),
            None => {
                let n = self.tensors.len();
                Err(ModelError::tensor(
                    &self.path,
                    name,
                    format!("is not among the {n} tensors of this file; check that it is the right file"),
                ))
            }
        }
    }

    fn view<'a>(&'a self, place: &'a Place) -> TensorView<'a> {
        TensorView { name: &place.name, dtype: place.dtype, shape: place.shape.clone(), bytes: &self.map[place.begin..place.end] }
    }
}

/// Reads and checks the header of a whole file.
fn read_header(path: &Path, bytes: &[u8]) -> Result<Vec<Place>, ModelError> {
    let again = "download or export it again";
    let fail = |problem: String| ModelError::file(path, format!("{problem}; {again}"));
    let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>().ok_or_else(|| fail("is too short for a safetensors file".into()))?;
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(ModelError::file(path, "is a Git LFS pointer, not the weights themselves; fetch the file's contents"));
    }
    let length = u64::from_le_bytes(*length);
    let header_len = usize::try_from(length).ok().filter(|&n| n <= MAX_HEADER_BYTES).ok_or_else(|| {
        fail(format!("says that its header has {length} bytes, and {MAX_HEADER_BYTES} is the limit of the format: this is no safetensors file or its start is damaged"))
    })?;
    let (header, data) = rest.split_at_checked(header_len).ok_or_else(|| {
        fail(format!(
            "says that its header has {header_len} bytes, but only {} follow: it is cut short or its start is damaged",
            rest.len()
        ))
    })?;
    let header = std::str::from_utf8(header)
        .map_err(|error| fail(format!("has a header that is not UTF-8 text (byte {} of the header)", error.valid_up_to())))?;
    let UniqueMap(entries) = serde_json::from_str::<UniqueMap<Entry>>(header)
        .map_err(|error| fail(format!("has a header that cannot be read ({})", files::brief(&error))))?;

    let data_start = LENGTH_BYTES + header_len;
    let mut places = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        places.push(read_entry(path, data_start, name, entry)?);
    }
    places.sort_by_key(|place| (place.begin, place.end));

    let mut end = data_start;
    for (i, place) in places.iter().enumerate() {
        if place.begin != end {
            let what = if place.begin < end { "overlaps" } else { "leaves a gap after" };
            let before = if i == 0 { "the header".to_owned() } else { format!("tensor `{}`", places[i - 1].name) };
            return Err(ModelError::tensor(path, &place.name, format!("{what} {before}: its offsets in the header are wrong; {again}")));
        }
        end = place.end;
    }
    let (promised, there) = (end - data_start, data.len());
    if promised > there {
        return Err(fail(format!("is cut short: its header promises {promised} bytes of data, and {there} are there")));
    }
    if promised < there {
        return Err(fail(format!("has {} bytes after its last tensor", there - promised)));
    }
    Ok(places)
}

/// Checks what the header says of one tensor, taken by itself.
fn read_entry(path: &Path, data_start: usize, name: String, entry: Entry) -> Result<Place, ModelError> {
    let fail = |problem: String| ModelError::tensor(path, &name, problem);
    let Some(dtype) = Dtype::from_name(&entry.dtype) else {
        let dtype = files::cut(&entry.dtype, 20);
        return Err(fail(format!("has dtype {dtype:?}, which is not supported; convert the checkpoint to BF16, F16 or F32")));
    };
    let Entry { shape, data_offsets: (begin, end), .. } = entry;
    if shape.len() > MAX_DIMENSIONS {
        return Err(fail(format!(
            "has {} dimensions, more than {MAX_DIMENSIONS}; the header is damaged, so download or export it again",
            shape.len()
        )));
    }
    let size = shape.iter().try_fold(dtype.size(), |product, &n| product.checked_mul(n));
    if size.is_none() || end.checked_sub(begin) != size {
        let needed = size.map_or("more bytes than can be addressed".to_owned(), |n| format!("{n} bytes"));
        return Err(fail(format!(
            "of shape {shape:?} and dtype {dtype} needs {needed}, but its offsets in the header are [{begin}, {end}]; download or export the file again"
        )));
    }
    let (Some(begin), Some(end)) = (begin.checked_add(data_start), end.checked_add(data_start)) else {
        return Err(fail(format!("has offsets [{begin}, {end}] in the header, beyond any file; download or export the file again")));
    };
    Ok(Place { name, dtype, shape, begin, end })
}

/// A JSON object in file order whose names are all different and fit to be printed. The header's
/// `__metadata__` (text to text) is skipped.
pub(super) struct UniqueMap<V>(pub(super) Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<V>(std::marker::PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
            type Value = UniqueMap<V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object that maps tensor names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                use serde::de::Error;
                let mut seen = std::collections::HashSet::new();
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name.len() > MAX_NAME_BYTES || name.contains(char::is_control) {
                        let problem = format!("a tensor has a name of {} bytes, which is too long or holds control characters", name.len());
                        return Err(A::Error::custom(problem));
                    }
                    if !seen.insert(name.clone()) {
                        return Err(A::Error::custom(format!("tensor `{name}` stands there twice")));
                    }
                    if name == "__metadata__" {
                        map.next_value::<Option<HashMap<String, String>>>()?;
                        continue;
                    }
                    let value = map.next_value().map_err(|error| A::Error::custom(format!("tensor `{name}`: {error}")))?;
                    entries.push((name, value));
                }
                Ok(UniqueMap(entries))
            }
        }

        deserializer.deserialize_map(Entries(std::marker::PhantomData))
    }
}
