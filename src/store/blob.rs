//! How rows become compact blobs, and come back to the bit.
//!
//! Token ids and log-probabilities are cut into four byte planes (all lowest bytes, then all second bytes, ...), so that the bytes that say
//! little (the high bytes of an id, the exponent of a float) stand together and deflate to little; a plane that deflate cannot make smaller
//! stays plain. Floats travel as bits: a NaN payload and -0.0 come back as they went. Every blob ends in its CRC-32, and every length is
//! checked before it is used: a damaged blob is an error, never a panic and never other numbers.

use flate2::{Compress, Compression, Crc, Decompress, FlushCompress, FlushDecompress, Status};

/// A blob that does not hold what its writer wrote.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a stored blob is damaged: {0}")]
pub struct Damaged(pub &'static str);

/// What is packed of a sample: everything that grows with its tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tokens {
    /// The sampled tokens.
    pub token_ids: Vec<u32>,
    /// One for every token.
    pub logprobs: Vec<f32>,
    /// Of the untouched distribution, where asked for.
    pub logprobs_raw: Option<Vec<f32>>,
    /// The answer.
    pub text: String,
    /// (version, start, end) of the tokens sampled under one weights version.
    pub weight_versions: Vec<(u64, u32, u32)>,
}

const FORMAT: u8 = 1;
/// Level 6 saves 2 % more and takes twice as long on a group's JSON.
const LEVEL: u32 = 3;
/// Sections shorter than this stay plain: setting the compressor up (300 KB of tables) costs far more than the few bytes it could save.
const LEAST_DEFLATED: usize = 96;
const PLAIN: u8 = 0;
const DEFLATED: u8 = 1;
const RAW_NONE: u8 = 0;
const RAW_EQUAL: u8 = 1;
const RAW_STORED: u8 = 2;
/// Deflate makes nothing smaller than a 1032nd.
const MOST_INFLATED: usize = 1032;

/// Packs a sample. 2 to 4 ms for 2,000 tokens on a slow core: do it in the caller's thread, not in the writer's.
pub fn pack_tokens(tokens: &Tokens) -> Vec<u8> {
    pack_parts(&tokens.token_ids, &tokens.logprobs, tokens.logprobs_raw.as_deref(), &tokens.text, &tokens.weight_versions)
}

pub(super) fn pack_parts(ids: &[u32], logprobs: &[f32], raw: Option<&[f32]>, text: &str, versions: &[(u64, u32, u32)]) -> Vec<u8> {
    let mut packer = Packer::new(ids.len() * 8);
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
    packer.planes(ids);
    let logprob_bits = bits(logprobs);
    packer.planes(&logprob_bits);
    match raw.map(bits) {
        None => packer.out.push(RAW_NONE),
        Some(raw) if raw == logprob_bits => packer.out.push(RAW_EQUAL),
        Some(raw) => {
            packer.out.push(RAW_STORED);
            packer.planes(&raw);
        }
    }
    packer.bytes(text.as_bytes());
    packer.varint(versions.len() as u64);
    for &(version, start, end) in versions {
        packer.varint(version);
        packer.varint(start.into());
        packer.varint(end.into());
    }
    packer.finish()
}

/// Takes a packed sample apart.
pub fn unpack_tokens(blob: &[u8]) -> Result<Tokens, Damaged> {
    let mut reader = Reader::open(blob)?;
    let floats = |bits: Vec<u32>| bits.into_iter().map(f32::from_bits).collect::<Vec<f32>>();
    let token_ids = reader.planes()?;
    let logprobs = floats(reader.planes()?);
    let logprobs_raw = match reader.byte()? {
        RAW_NONE => None,
        RAW_EQUAL => Some(logprobs.clone()),
        RAW_STORED => Some(floats(reader.planes()?)),
        _ => return Err(Damaged("it names an unknown kind of raw log-probabilities")),
    };
    let text = String::from_utf8(reader.bytes()?).map_err(|_| Damaged("its text is not UTF-8"))?;
    let spans = reader.length()?;
    let mut weight_versions = Vec::new();
    for _ in 0..spans {
        weight_versions.push((reader.varint()?, reader.u32()?, reader.u32()?));
    }
    reader.end()?;
    Ok(Tokens { token_ids, logprobs, logprobs_raw, text, weight_versions })
}

/// Packs plain bytes (a specification, a group's JSON).
pub fn pack_bytes(bytes: &[u8]) -> Vec<u8> {
    let mut packer = Packer::new(bytes.len() / 2);
    packer.bytes(bytes);
    packer.finish()
}

/// Takes packed bytes apart.
pub fn unpack_bytes(blob: &[u8]) -> Result<Vec<u8>, Damaged> {
    let mut reader = Reader::open(blob)?;
    let bytes = reader.bytes()?;
    reader.end()?;
    Ok(bytes)
}

/// Takes packed text apart.
pub fn unpack_text(blob: &[u8]) -> Result<String, Damaged> {
    String::from_utf8(unpack_bytes(blob)?).map_err(|_| Damaged("its text is not UTF-8"))
}

struct Packer {
    out: Vec<u8>,
    /// One compressor for all sections, made when the first is long enough: making it costs more than what it does.
    deflate: Option<Compress>,
}

impl Packer {
    fn new(expected: usize) -> Self {
        let mut out = Vec::with_capacity(expected + 64);
        out.push(FORMAT);
        Packer { out, deflate: None }
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.out.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.out.push(value as u8);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let packed = if bytes.len() < LEAST_DEFLATED { None } else { self.deflated(bytes) };
        let (method, stored) = packed.as_deref().map_or((PLAIN, bytes), |packed| (DEFLATED, packed));
        let smaller = packed.is_some();
        self.out.push(method);
        self.varint(bytes.len() as u64);
        if smaller {
            self.varint(stored.len() as u64);
        }
        self.out.extend_from_slice(stored);
    }

    /// The bytes made smaller, if deflate can.
    fn deflated(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut packed = Vec::with_capacity(bytes.len());
        let deflate = self.deflate.get_or_insert_with(|| Compress::new(Compression::new(LEVEL), false));
        deflate.reset();
        // Writes within the capacity only: what does not end there is no smaller than the plain bytes.
        let ended = deflate.compress_vec(bytes, &mut packed, FlushCompress::Finish);
        (matches!(ended, Ok(Status::StreamEnd)) && packed.len() < bytes.len()).then_some(packed)
    }

    fn planes(&mut self, values: &[u32]) {
        let mut plane = vec![0u8; values.len()];
        for shift in [0, 8, 16, 24] {
            for (byte, value) in plane.iter_mut().zip(values) {
                *byte = (value >> shift) as u8;
            }
            self.bytes(&plane);
        }
    }

    fn finish(mut self) -> Vec<u8> {
        let sum = crc(&self.out);
        self.out.extend_from_slice(&sum);
        self.out
    }
}

fn crc(bytes: &[u8]) -> [u8; 4] {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum().to_le_bytes()
}

struct Reader<'a> {
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    fn open(blob: &'a [u8]) -> Result<Self, Damaged> {
        let (body, sum) = blob.split_last_chunk::<4>().ok_or(Damaged("it is too short"))?;
        if crc(body) != *sum {
            return Err(Damaged("its checksum does not fit"));
        }
        let mut reader = Reader { left: body };
        match reader.byte()? {
            FORMAT => Ok(reader),
            _ => Err(Damaged("its format is unknown; it was written by a newer adaroll")),
        }
    }

    fn byte(&mut self) -> Result<u8, Damaged> {
        let (first, rest) = self.left.split_first().ok_or(Damaged("it ends early"))?;
        self.left = rest;
        Ok(*first)
    }

    fn varint(&mut self) -> Result<u64, Damaged> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                break;
            }
            value |= part << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Damaged("a number in it is too large"))
    }

    fn u32(&mut self) -> Result<u32, Damaged> {
        u32::try_from(self.varint()?).map_err(|_| Damaged("a number in it is too large"))
    }

    fn length(&mut self) -> Result<usize, Damaged> {
        usize::try_from(self.varint()?).map_err(|_| Damaged("a length in it is too large"))
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], Damaged> {
        let (taken, rest) = self.left.split_at_checked(n).ok_or(Damaged("it ends early"))?;
        self.left = rest;
        Ok(taken)
    }

    fn bytes(&mut self) -> Result<Vec<u8>, Damaged> {
        let method = self.byte()?;
        let length = self.length()?;
        match method {
            PLAIN => Ok(self.take(length)?.to_vec()),
            DEFLATED => {
                let stored = self.length()?;
                let stored = self.take(stored)?;
                if length / MOST_INFLATED > stored.len() {
                    return Err(Damaged("a length in it is too large"));
                }
                let mut out = Vec::with_capacity(length);
                match Decompress::new(false).decompress_vec(stored, &mut out, FlushDecompress::Finish) {
                    Ok(Status::StreamEnd) if out.len() == length => Ok(out),
                    _ => Err(Damaged("a part of it cannot be inflated")),
                }
            }
            _ => Err(Damaged("it names an unknown method")),
        }
    }

    fn planes(&mut self) -> Result<Vec<u32>, Damaged> {
        let mut values: Vec<u32> = self.bytes()?.into_iter().map(u32::from).collect();
        for shift in [8, 16, 24] {
            let plane = self.bytes()?;
            if plane.len() != values.len() {
                return Err(Damaged("its planes have different lengths"));
            }
            for (value, byte) in values.iter_mut().zip(plane) {
                *value |= u32::from(byte) << shift;
            }
        }
        Ok(values)
    }

    fn end(&self) -> Result<(), Damaged> {
        if self.left.is_empty() { Ok(()) } else { Err(Damaged("it goes on after its end")) }
    }
}
