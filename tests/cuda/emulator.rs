//! The card that the tests run on: the emulator, built here with the system's C++ compiler, or a real GPU.
//!
//! The emulator is a `libcuda.so.1` that the loader must find instead of the driver's, so the test binary starts itself again with the folder in
//! `LD_LIBRARY_PATH`. `ADAROLL_TEST_GPU=real` runs the same tests on the machine's own card; `ADAROLL_TEST_SANITIZE=1` builds kernels and emulator
//! with AddressSanitizer and UndefinedBehaviorSanitizer.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the tests run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Card {
    /// The emulator.
    Emulated,
    /// The machine's own.
    Real,
}

/// Set in the process that runs the tests.
const READY: &str = "ADAROLL_TEST_EMULATOR";

/// The card of this process.
pub fn card() -> Card {
    if std::env::var_os("ADAROLL_TEST_GPU").is_some_and(|v| v == "real") { Card::Real } else { Card::Emulated }
}

/// Whether sanitizers watch.
pub fn sanitized() -> bool {
    std::env::var_os("ADAROLL_TEST_SANITIZE").is_some_and(|v| v == "1")
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of the emulator's library, in the process that runs the tests.
pub fn folder() -> PathBuf {
    std::env::var_os(READY).map(PathBuf::from).expect("only the emulated card has a folder")
}

/// Makes the card ready: builds the emulator and starts this process again with it, once. `Err` says why there is none.
pub fn prepare() -> Result<(), String> {
    if card() == Card::Real || std::env::var_os(READY).is_some() {
        return Ok(());
    }
    let kind = if sanitized() { "sanitize" } else { "plain" };
    let folder = build(kind)?;
    let mut command = Command::new(std::env::current_exe().map_err(|e| e.to_string())?);
    command.args(std::env::args_os().skip(1)).env(READY, &folder).env("LD_LIBRARY_PATH", joined(&folder));
    if sanitized() {
        let library = Command::new(compiler()).arg("-print-file-name=libasan.so").output().map_err(|e| e.to_string())?;
        command.env("LD_PRELOAD", String::from_utf8_lossy(&library.stdout).trim());
        command.env("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1").env("UBSAN_OPTIONS", "print_stacktrace=1");
    }
    Err(format!("this process cannot be started again: {}", command.exec()))
}

/// The library path with a folder in front.
pub fn joined(folder: &Path) -> std::ffi::OsString {
    let mut path = folder.as_os_str().to_owned();
    if let Some(old) = std::env::var_os("LD_LIBRARY_PATH").filter(|old| !old.is_empty()) {
        path.push(":");
        path.push(old);
    }
    path
}

fn compiler() -> std::ffi::OsString {
    std::env::var_os("CXX").unwrap_or_else(|| "g++".into())
}

/// Builds a kind of the emulator from the sources as they are, or finds it built.
fn build(kind: &str) -> Result<PathBuf, String> {
    let found = Command::new(compiler()).arg("--version").output().is_ok_and(|o| o.status.success());
    if !found {
        return Err(format!("no C++ compiler ({}): install g++, or name one in CXX", compiler().to_string_lossy()));
    }
    let kernels = std::env::var_os("KERNELS").map_or_else(|| root().join("kernels"), PathBuf::from);
    let mut hasher = blake3::Hasher::new();
    for dir in [&kernels, &root().join("tests/emulator")] {
        let mut files: Vec<PathBuf> = std::fs::read_dir(dir).map_err(|e| e.to_string())?.flatten().map(|f| f.path()).collect();
        files.sort();
        for file in files.iter().filter(|f| f.is_file()) {
            hasher.update(file.file_name().unwrap_or_default().as_encoded_bytes());
            hasher.update(&std::fs::read(file).map_err(|e| e.to_string())?);
        }
    }
    let name = format!("{kind}-{}", &hasher.finalize().to_hex()[..16]);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("emulator").join(name);
    if folder.join("libcuda.so.1").is_file() {
        return Ok(folder);
    }
    // Several test processes may build at once: each in a folder of its own, and one of them wins.
    let mine = folder.with_extension(std::process::id().to_string());
    std::fs::create_dir_all(&mine).map_err(|e| e.to_string())?;
    let script = root().join("tests/emulator/build.sh");
    let built = Command::new("sh").arg(script).arg(&mine).arg(kind).env("KERNELS", &kernels).status().map_err(|e| e.to_string())?;
    if !built.success() {
        panic!("the emulator does not compile; see above");
    }
    let _ = std::fs::rename(&mine, &folder);
    match folder.join("libcuda.so.1").is_file() {
        true => Ok(folder),
        false => Err(format!("the emulator is not in {}", folder.display())),
    }
}

/// A function of the emulator's own.
fn function(name: &std::ffi::CStr) -> *mut libc::c_void {
    // SAFETY: the library is loaded by now, or is loaded here; the names are its own.
    let found = unsafe { libc::dlsym(libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    assert!(!found.is_null(), "the emulator has no {name:?}");
    found
}

/// The orders in which the warps of a block may run.
pub fn orders() -> &'static [u32] {
    if card() == Card::Real { &[0] } else { &[0, 1, 7] }
}

/// Sets the order of warps for kernels that this thread waits for: 0 up, 1 down, else shuffled with this seed.
pub fn set_order(order: u32) {
    if card() == Card::Emulated {
        // SAFETY: the emulator's function of this type.
        let set: extern "C" fn(u32) = unsafe { std::mem::transmute(function(c"adaroll_emulator_order")) };
        set(order);
    }
}

/// What the emulator has counted in this process.
#[derive(Clone, Copy, Debug)]
pub enum Count {
    /// Graphs started.
    GraphLaunches = 2,
    /// Memory allocations.
    Allocations = 3,
    /// Recordings of graphs.
    Captures = 4,
}

/// Reads a counter of the emulator.
pub fn count(what: Count) -> u64 {
    // SAFETY: the emulator's function of this type.
    let count: extern "C" fn(i32) -> u64 = unsafe { std::mem::transmute(function(c"adaroll_emulator_count")) };
    count(what as i32)
}
