//! What a run leaves for other people's tools: TensorBoard event files, read by a decoder of the test's own, and names in /metrics.

use std::fs;
use std::path::{Path, PathBuf};

use adaroll::trainer::events::{EventWriter, crc32c};
use adaroll::trainer::names;

/// A CRC-32C bit by bit, to judge the table's.
fn slow_crc(data: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in data {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

#[test]
fn crc32c_has_the_values_of_its_standard() {
    // RFC 3720, B.4, and the check value of the catalogues.
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
    assert_eq!(crc32c(b""), 0);
    let long: Vec<u8> = (0..1000u32).map(|i| ((i * 37) >> 3) as u8).collect();
    assert_eq!(crc32c(&long), slow_crc(&long));
}

/// A protocol buffer's fields: number and content (varints and fixed values as bytes).
fn fields(mut data: &[u8]) -> Vec<(u64, Vec<u8>)> {
    fn varint(data: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = data[0];
            *data = &data[1..];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return value;
            }
            shift += 7;
        }
    }
    let mut found = Vec::new();
    while !data.is_empty() {
        let tag = varint(&mut data);
        let n = match tag & 7 {
            0 => {
                found.push((tag >> 3, varint(&mut data).to_le_bytes().to_vec()));
                continue;
            }
            1 => 8,
            2 => varint(&mut data) as usize,
            5 => 4,
            wire => panic!("wire type {wire}"),
        };
        found.push((tag >> 3, data[..n].to_vec()));
        data = &data[n..];
    }
    found
}

#[derive(Debug, PartialEq)]
enum Event {
    Version(u64, String),
    Start(u64),
    Scalar(u64, String, f32),
}

/// Reads an event file as TensorBoard does, with every check of its own.
fn events(path: &Path) -> Vec<Event> {
    let file = fs::read(path).unwrap();
    let mut data = file.as_slice();
    let mut found = Vec::new();
    let unmask = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap()).wrapping_sub(0xa282_ead8).rotate_left(15);
    while !data.is_empty() {
        let n = u64::from_le_bytes(data[..8].try_into().unwrap()) as usize;
        assert_eq!(unmask(&data[8..12]), slow_crc(&data[..8]), "the length's CRC");
        let event = &data[12..12 + n];
        assert_eq!(unmask(&data[12 + n..16 + n]), slow_crc(event), "the record's CRC");
        data = &data[16 + n..];
        let fields = fields(event);
        let field = |number: u64| fields.iter().find(|(n, _)| *n == number).map(|(_, content)| content.clone());
        let wall = f64::from_le_bytes(field(1).unwrap().try_into().unwrap());
        assert!(wall > 1.7e9, "wall time {wall}");
        let step = u64::from_le_bytes(field(2).unwrap().try_into().unwrap());
        if let Some(version) = field(3) {
            found.push(Event::Version(step, String::from_utf8(version).unwrap()));
        } else if let Some(session) = field(7) {
            assert_eq!(self::fields(&session), [(1, 1u64.to_le_bytes().to_vec())], "SessionLog.START");
            found.push(Event::Start(step));
        } else {
            let summary = self::fields(&field(5).unwrap());
            let value = self::fields(&summary[0].1);
            assert_eq!((summary.len(), summary[0].0, value[0].0, value[1].0), (1, 1, 1, 2));
            let (tag, number) =
                (String::from_utf8(value[0].1.clone()).unwrap(), f32::from_le_bytes(value[1].1.clone().try_into().unwrap()));
            found.push(Event::Scalar(step, tag, number));
        }
    }
    found
}

#[test]
fn event_files_are_what_tensorboard_reads() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("a/tensorboard");
    let mut first = EventWriter::open(&folder, 0).unwrap();
    first.scalar(1, "critic/score/mean", 0.25).unwrap();
    first.scalar(300, "actor/lr", 1e-3).unwrap();
    first.flush().unwrap();
    // A process that goes on from step 200: what the first wrote beyond it is to be forgotten.
    let mut second = EventWriter::open(&folder, 200).unwrap();
    second.scalar(201, "loss", -1.5).unwrap();
    second.flush().unwrap();
    // Killed at once: the file is whole all the same.
    drop(EventWriter::open(&folder, 0).unwrap());
    let mut files: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let names: Vec<String> = files.iter().map(|f| f.file_name().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(
        names,
        ["events.out.tfevents.0000000000.adaroll", "events.out.tfevents.0000000001.adaroll", "events.out.tfevents.0000000002.adaroll"]
    );
    let version = || Event::Version(0, "brain.Event:2".into());
    assert_eq!(
        events(&files[0]),
        [version(), Event::Scalar(1, "critic/score/mean".into(), 0.25), Event::Scalar(300, "actor/lr".into(), 1e-3)]
    );
    assert_eq!(events(&files[1]), [version(), Event::Start(201), Event::Scalar(201, "loss".into(), -1.5)]);
    // And began anew: all of it is to be forgotten.
    assert_eq!(events(&files[2]), [version(), Event::Start(0)]);
}

#[test]
fn every_number_that_the_trainer_writes_has_a_name_and_a_line() {
    assert_eq!(names::prometheus("critic/score/mean"), "trainer_critic_score_mean");
    assert_eq!(names::prometheus("eval/pass@1/hard"), "trainer_eval_pass_1_hard");
    assert_eq!(names::prometheus("eval/pass@1/größe 2 (neu)"), "trainer_eval_pass_1_gr_e_2_neu");
    assert_eq!(names::help("eval/pass@1"), "Probability that one sample is right, mean over all held-out problems.");
    assert_eq!(
        names::help("eval/pass@16/hard"),
        "Probability that at least one of 16 samples is right, mean over the held-out problems of slice hard."
    );
    assert!(names::help("something/else").contains("something/else") && !names::is_known("something/else"));
    // Every literal name in the sources that write numbers.
    let literal = regex::Regex::new(r#""((?:ada|actor|critic|eval|perf|response_length|timing_s|training)/[a-z0-9_@/]+)""#).unwrap();
    let mut found = std::collections::BTreeSet::new();
    for file in ["summary.rs", "update.rs", "evaluate.rs", "run.rs", "sft.rs"] {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/trainer").join(file)).unwrap();
        found.extend(literal.captures_iter(&text).map(|c| c[1].to_owned()));
    }
    assert!(found.len() > 40 && found.contains("ada/signal_fraction"), "{found:?}");
    for name in &found {
        let help = names::help(name);
        assert!(names::is_known(name), "{name} has no line of its own");
        assert!(help.ends_with('.') && !help.contains('\n'), "{name}: {help}");
    }
}
