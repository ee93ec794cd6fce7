//! TensorBoard event files: every number of a run as a scalar.
//!
//! A file is a sequence of TFRecords: length (u64), its masked CRC, the bytes of an `Event` protocol buffer, their masked CRC. Each process
//! writes a file of its own; the counter in their names makes them sort in the order in which they were written. A process that goes on
//! from a checkpoint begins with a session start at the step after it: TensorBoard then forgets what an earlier process wrote from there on.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes one event file.
#[derive(Debug)]
pub struct EventWriter {
    out: BufWriter<File>,
}

impl EventWriter {
    /// Begins a new file in `dir`, which is created. `step` is where this process goes on from; 0 for a new run.
    pub fn open(dir: &Path, step: u64) -> io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let mut next = 0u64;
        for entry in std::fs::read_dir(dir)? {
            let name = entry?.file_name();
            let counter = name.to_string_lossy().strip_prefix(PREFIX).and_then(|rest| rest.split('.').next()?.parse::<u64>().ok());
            next = next.max(counter.map_or(0, |n| n + 1));
        }
        let file = OpenOptions::new().write(true).create_new(true).open(dir.join(format!("{PREFIX}{next:010}.adaroll")))?;
        let mut writer = EventWriter { out: BufWriter::new(file) };
        let mut version = Vec::new();
        bytes(&mut version, 3, b"brain.Event:2");
        writer.event(0, &version)?;
        if step > 0 || next > 0 {
            // TensorBoard forgets this step and all beyond it. Step 0 is an evaluation that a new start takes again; any other was kept.
            let from = if step > 0 { step + 1 } else { 0 };
            // SessionLog { status: START }.
            let mut session = Vec::new();
            field(&mut session, 1, 0);
            varint(&mut session, 1);
            let mut log = Vec::new();
            bytes(&mut log, 7, &session);
            writer.event(from, &log)?;
        }
        writer.flush()?;
        Ok(writer)
    }

    /// Appends a number.
    pub fn scalar(&mut self, step: u64, name: &str, value: f64) -> io::Result<()> {
        let mut entry = Vec::with_capacity(name.len() + 8);
        bytes(&mut entry, 1, name.as_bytes());
        field(&mut entry, 2, 5);
        entry.extend((value as f32).to_le_bytes());
        let mut summary = Vec::with_capacity(entry.len() + 4);
        bytes(&mut summary, 1, &entry);
        let mut event = Vec::with_capacity(summary.len() + 4);
        bytes(&mut event, 5, &summary);
        self.event(step, &event)
    }

    /// Hands everything so far to the system.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Writes an event at `step` whose content is encoded already.
    fn event(&mut self, step: u64, content: &[u8]) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64());
        let mut event = Vec::with_capacity(content.len() + 20);
        field(&mut event, 1, 1);
        event.extend(now.to_le_bytes());
        field(&mut event, 2, 0);
        varint(&mut event, step);
        event.extend(content);
        let length = (event.len() as u64).to_le_bytes();
        self.out.write_all(&length)?;
        self.out.write_all(&masked_crc(&length).to_le_bytes())?;
        self.out.write_all(&event)?;
        self.out.write_all(&masked_crc(&event).to_le_bytes())
    }
}

/// TensorBoard looks for this in names.
const PREFIX: &str = "events.out.tfevents.";

/// A field's tag: its number and how it is encoded (0 a varint, 1 eight bytes, 2 a length and bytes, 5 four bytes).
fn field(out: &mut Vec<u8>, number: u64, wire: u64) {
    varint(out, number << 3 | wire);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn bytes(out: &mut Vec<u8>, number: u64, content: &[u8]) {
    field(out, number, 2);
    varint(out, content.len() as u64);
    out.extend(content);
}

/// A CRC of bytes that may hold CRCs themselves, so that those do not stay as they are.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// CRC-32C (Castagnoli).
pub fn crc32c(data: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0u32; 256];
        let mut i = 0;
        while i < 256 {
            let (mut crc, mut bit) = (i as u32, 0);
            while bit < 8 {
                crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
                bit += 1;
            }
            table[i] = crc;
            i += 1;
        }
        table
    };
    !data.iter().fold(!0u32, |crc, byte| TABLE[usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}
