//! Writing safetensors: what [`super::SafetensorsFile`] and every other reader of the format take back.

use std::io::{Result, Write};

use serde_json::{Map, Value, json};

use super::tensor_view::{Dtype, TensorView};

/// Writes tensors in the order given; the same tensors give the same bytes. The header is padded with spaces to a multiple of eight bytes, as the
/// format's own library does it, so that the data is aligned. `out` is best buffered.
pub fn write_safetensors(out: &mut impl Write, tensors: &[TensorView<'_>]) -> Result<()> {
    write_header(out, tensors.iter().map(|t| (t.name, t.dtype, t.shape.as_slice())))?;
    tensors.iter().try_for_each(|tensor| out.write_all(tensor.bytes))
}

/// Writes what stands before the bytes of these tensors.
pub fn write_header<'a>(out: &mut impl Write, tensors: impl Iterator<Item = (&'a str, Dtype, &'a [usize])>) -> Result<()> {
    let mut header = Map::from_iter([("__metadata__".to_owned(), json!({"format": "pt"}))]);
    let mut begin = 0;
    for (name, dtype, shape) in tensors {
        let end = begin + shape.iter().product::<usize>() * dtype.size();
        header.insert(name.to_owned(), json!({"dtype": dtype.name(), "shape": shape, "data_offsets": [begin, end]}));
        begin = end;
    }
    let mut header = Value::Object(header).to_string();
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())
}
