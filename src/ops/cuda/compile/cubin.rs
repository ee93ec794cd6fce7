//! What a cubin says about its kernels: registers, memory, parameters.
//!
//! A cubin is an ELF file. A kernel `k` is a function symbol with the mark `ENTRY`; its code is the section `.text.k`, its static shared memory
//! `.nv.shared.k`. Attributes are lists of entries in `.nv.info` (of all functions, each value with the function's symbol before it) and in
//! `.nv.info.k`. An entry is {format u8, attribute u8, then a u16: the value itself, or for `SIZED` the number of bytes that follow}.
//! The files may be anything: every read is checked, and what does not fit is an error.

use object::read::elf::{ElfFile64, Sym};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, SymbolKind};
use serde::{Deserialize, Serialize};

/// What every ELF file begins with.
const MAGIC: &[u8] = b"\x7fELF";
/// `e_machine` of NVIDIA's ELF files.
const CUDA: u16 = 190;
/// The mark of a kernel in `st_other`.
const ENTRY: u8 = 0x10;
/// Format of an entry whose value follows it; the other formats hold theirs.
const SIZED: u8 = 4;

// Attributes, by NVIDIA's names without EIATTR_.
const FRAME_SIZE: u8 = 0x11;
const MIN_STACK_SIZE: u8 = 0x12;
const KPARAM_INFO: u8 = 0x17;
const CBANK_PARAM_SIZE: u8 = 0x19;
const REGCOUNT: u8 = 0x2f;

/// Shared memory that the driver keeps at the front of every block's, where the file has a section for it (sm_90 and newer). It is counted in the
/// sections of the kernels; `ptxas -v` does not report it, and neither do we.
const RESERVED_SHARED: u64 = 1024;

/// What a kernel takes of a multiprocessor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Registers of a thread.
    pub registers: u32,
    /// Static shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Local memory of a thread, in bytes: arrays that are not in registers, and what was spilled.
    pub local_bytes: u32,
    /// All parameters together, with the gaps between them.
    pub parameter_bytes: u32,
    /// The size of each parameter, in order.
    pub parameters: Vec<u32>,
}

/// What a cubin holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Its kernels, by name.
    pub kernels: Vec<(String, Resources)>,
    /// Version of the tools that made it, `13.0.88`, where it says so.
    pub tools: Option<String>,
}

/// Why bytes are no cubin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no cubin: {0}")]
pub struct CubinError(String);

/// Whether bytes are meant to be a cubin.
pub fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Reads a cubin.
pub fn read(bytes: &[u8]) -> Result<Contents, CubinError> {
    let bad = |e: object::read::Error| CubinError(e.to_string());
    let file = ElfFile64::<Endianness>::parse(bytes).map_err(bad)?;
    let machine = file.elf_header().e_machine.get(file.endian());
    if machine.0 != CUDA {
        return Err(CubinError(format!("made for machine {} and not for NVIDIA's cards ({CUDA})", machine.0)));
    }
    let common = attributes(&file, ".nv.info")?;
    let reserved = if file.section_by_name(".nv.shared.reserved.0").is_some() { RESERVED_SHARED } else { 0 };
    let mut kernels = Vec::new();
    for symbol in file.symbols() {
        if symbol.kind() != SymbolKind::Text || symbol.elf_symbol().st_other().0 & ENTRY == 0 {
            continue;
        }
        let name = symbol.name().map_err(bad)?.to_owned();
        if file.section_by_name(&format!(".text.{name}")).is_none() {
            return Err(CubinError(format!("kernel {name} has no code")));
        }
        // Of all functions: the entries with this symbol.
        let of_symbol = |attribute| {
            let values = common.iter().filter(move |(a, _)| *a == attribute).map(|(_, value)| value);
            let index = symbol.index().0;
            values.filter(move |v| word(v, 0).is_some_and(|i| i as usize == index)).filter_map(|v| word(v, 4)).max()
        };
        let own = attributes(&file, &format!(".nv.info.{name}"))?;
        let shared = file.section_by_name(&format!(".nv.shared.{name}")).map_or(0, |s| s.size().saturating_sub(reserved));
        kernels.push((
            name.clone(),
            Resources {
                registers: of_symbol(REGCOUNT).ok_or_else(|| CubinError(format!("kernel {name} has no number of registers")))?,
                shared_bytes: u32::try_from(shared)
                    .map_err(|_| CubinError(format!("kernel {name} has {shared} bytes of shared memory")))?,
                local_bytes: of_symbol(FRAME_SIZE).max(of_symbol(MIN_STACK_SIZE)).unwrap_or(0),
                parameter_bytes: own.iter().find(|(a, _)| *a == CBANK_PARAM_SIZE).and_then(|(_, v)| half(v, 0)).unwrap_or(0),
                parameters: parameters(&own),
            },
        ));
    }
    kernels.sort_by(|a, b| a.0.cmp(&b.0));
    if kernels.is_empty() {
        return Err(CubinError("it holds no kernel".into()));
    }
    Ok(Contents { kernels, tools: tools(&file)? })
}

/// The entries of a section of attributes; none if there is no such section.
fn attributes<'a>(file: &ElfFile64<'a, Endianness>, section: &str) -> Result<Vec<(u8, &'a [u8])>, CubinError> {
    let mut rest = section_bytes(file, section)?;
    let mut entries = Vec::new();
    let short = || CubinError(format!("section {section} ends within an entry"));
    while !rest.is_empty() {
        let (head, after) = rest.split_at_checked(4).ok_or_else(short)?;
        let size = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let (value, next) = if head[0] == SIZED { after.split_at_checked(size).ok_or_else(short)? } else { (&head[2..], after) };
        entries.push((head[1], value));
        rest = next;
    }
    Ok(entries)
}

fn section_bytes<'a>(file: &ElfFile64<'a, Endianness>, name: &str) -> Result<&'a [u8], CubinError> {
    match file.section_by_name(name) {
        Some(section) => section.data().map_err(|e| CubinError(format!("section {name}: {e}"))),
        None => Ok(&[]),
    }
}

/// Each parameter is an entry {u32 index, u16 ordinal, u16 offset, u32 flags with the size from bit 18 on}.
fn parameters(own: &[(u8, &[u8])]) -> Vec<u32> {
    let entries = own.iter().filter(|(attribute, _)| *attribute == KPARAM_INFO);
    let mut sizes: Vec<(u32, u32)> = entries.filter_map(|(_, v)| Some((half(v, 4)?, word(v, 8)? >> 18))).collect();
    sizes.sort_unstable();
    sizes.into_iter().map(|(_, size)| size).collect()
}

/// The note of the tools holds `Cuda compilation tools, release 13.0, V13.0.88`.
fn tools(file: &ElfFile64<'_, Endianness>) -> Result<Option<String>, CubinError> {
    const BEFORE: &[u8] = b", V";
    let note = section_bytes(file, ".note.nv.tkinfo")?;
    let found = note.windows(BEFORE.len()).position(|w| w == BEFORE).map(|at| &note[at + BEFORE.len()..]);
    let version: String = found.unwrap_or(&[]).iter().map(|b| char::from(*b)).take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    Ok(Some(version).filter(|v| !v.is_empty()))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?).into())
}
