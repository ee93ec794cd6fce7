//! NVRTC, CUDA's compiler as a library: finding it, and one call that makes a cubin of a family.
//!
//! It needs neither a card nor a driver. It is loaded here and not through cudarc, which looks for fixed names only: a library that the user
//! names must be the one that compiles, even beside another that the loader knows. Its functions are the same since CUDA 11.2.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};

use libloading::Library;

use super::sources::{Architecture, FLAGS, Family, HEADERS};
use super::{KernelError, cubin};

/// A program that is being compiled.
type Program = *mut std::ffi::c_void;

/// Names of the library, the newest release first.
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
/// What NVRTC itself loads, from the loader's path only, on the first compilation.
const BUILTINS: &str = "libnvrtc-builtins.so";
/// Folders of a toolkit that may hold the library.
const TOOLKIT_FOLDERS: [&str; 2] = ["lib64", "lib"];
const TOOLKIT: &str = "/usr/local/cuda";

/// A library that was found and works.
pub struct Nvrtc {
    functions: Functions,
    /// Release and build, `13.0.88`: builds of one release may make different code.
    pub version: String,
    /// Its file, or its name where the loader found it.
    pub place: String,
}

#[derive(Clone, Copy)]
struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    create: unsafe extern "C" fn(*mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    arch_count: unsafe extern "C" fn(*mut c_int) -> c_int,
    archs: unsafe extern "C" fn(*mut c_int) -> c_int,
}

/// Why a program was not compiled.
enum Failed {
    /// The library itself, in words.
    Library(String),
    /// The source; the compiler's log.
    Source(String),
}

impl Nvrtc {
    /// Finds the library: the file that is named, else through the loader, else in a toolkit's folders.
    pub fn find(named: Option<&Path>) -> Result<Nvrtc, KernelError> {
        if let Some(file) = named {
            let loaded = open_file(file).map_err(|reason| KernelError::BadNvrtc { place: file.display().to_string(), reason })?;
            return Nvrtc::tried(loaded, file.display().to_string());
        }
        for name in NAMES {
            // SAFETY: NVRTC's initialisers have no preconditions.
            if let Ok(library) = unsafe { Library::new(name) } {
                return Nvrtc::tried(library, name.to_owned());
            }
        }
        for file in toolkit_files() {
            if let Ok(library) = open_file(&file) {
                return Nvrtc::tried(library, file.display().to_string());
            }
        }
        Err(KernelError::NoNvrtc)
    }

    /// Compiles something small: that shows whether the library is whole, and the result names the exact build.
    fn tried(library: Library, place: String) -> Result<Nvrtc, KernelError> {
        let bad = |reason: String| KernelError::BadNvrtc { place: place.clone(), reason };
        // SAFETY: the types are those of NVRTC's header.
        let functions = unsafe { Functions::of(&library) }
            .map_err(|e| bad(format!("it lacks a function ({}); CUDA 11.2 or newer has them all", in_words(e))))?;
        // The functions are used as long as the process lives.
        std::mem::forget(library);
        let mut nvrtc = Nvrtc { functions, version: String::new(), place: place.clone() };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two integers to write.
        nvrtc.check(unsafe { (functions.version)(&mut major, &mut minor) }).map_err(bad)?;
        nvrtc.version = format!("{major}.{minor}");
        let probe = nvrtc.program("probe.cu", "extern \"C\" __global__ void probe() {}", Architecture::from((8, 0)));
        let image = probe.map_err(|failed| match failed {
            Failed::Library(reason) | Failed::Source(reason) => bad(reason),
        })?;
        if let Some(build) = cubin::read(&image).map_err(|e| bad(format!("it made {e}")))?.tools {
            nvrtc.version = build;
        }
        Ok(nvrtc)
    }

    /// Makes the cubin of a family.
    pub fn compile(&self, family: &Family, arch: Architecture) -> Result<Vec<u8>, KernelError> {
        let known = self.architectures().map_err(|reason| KernelError::BadNvrtc { place: self.place.clone(), reason })?;
        if !known.contains(&arch.number()) {
            let known = known.iter().map(|n| format!("sm_{n}")).collect::<Vec<_>>().join(", ");
            return Err(KernelError::UnknownArchitecture { arch: arch.to_string(), version: self.version.clone(), known });
        }
        self.program(&format!("{}.cu", family.name), family.source, arch).map_err(|failed| match failed {
            Failed::Library(reason) => KernelError::BadNvrtc { place: self.place.clone(), reason },
            Failed::Source(log) => KernelError::Source { family: family.name, arch: arch.to_string(), log },
        })
    }

    /// The architectures that it compiles for, by their numbers.
    fn architectures(&self) -> Result<Vec<u32>, String> {
        let mut count = 0;
        // SAFETY: an integer to write.
        self.check(unsafe { (self.functions.arch_count)(&mut count) })?;
        let mut numbers = vec![0; count.max(0) as usize];
        // SAFETY: room for as many integers as it said.
        self.check(unsafe { (self.functions.archs)(numbers.as_mut_ptr()) })?;
        Ok(numbers.into_iter().map(|n| n as u32).collect())
    }

    fn program(&self, name: &str, source: &str, arch: Architecture) -> Result<Vec<u8>, Failed> {
        let options: Vec<CString> =
            [format!("--gpu-architecture={arch}")].iter().map(String::as_str).chain(FLAGS).map(text).collect::<Result<_, _>>()?;
        let headers: Vec<CString> = HEADERS.iter().map(|(_, header)| text(header)).collect::<Result<_, _>>()?;
        let names: Vec<CString> = HEADERS.iter().map(|(name, _)| text(name)).collect::<Result<_, _>>()?;
        let (options, headers, names) = (pointers(&options), pointers(&headers), pointers(&names));
        let (name, source) = (text(name)?, text(source)?);
        let calls = self.functions;
        let mut program = Open { program: std::ptr::null_mut(), destroy: calls.destroy };
        let at = &mut program.program;
        // SAFETY: strings that end with zero and live until the end of this function, as many as is said.
        let made = unsafe { (calls.create)(at, source.as_ptr(), name.as_ptr(), headers.len() as c_int, headers.as_ptr(), names.as_ptr()) };
        self.check(made).map_err(Failed::Library)?;
        let handle = program.program;
        // SAFETY: the program was created above; the strings live.
        let compiled = unsafe { (calls.compile)(handle, options.len() as c_int, options.as_ptr()) };
        if let Err(reason) = self.check(compiled) {
            // SAFETY: both are the functions for a program's log.
            let log = unsafe { self.output(handle, calls.log_size, calls.log) }.unwrap_or_default();
            let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned();
            return Err(match compiled {
                COMPILATION_FAILED => Failed::Source(log),
                _ if log.is_empty() => Failed::Library(reason),
                _ => Failed::Library(format!("{reason}: {log}")),
            });
        }
        // SAFETY: both are the functions for a program's cubin.
        unsafe { self.output(handle, calls.cubin_size, calls.cubin) }.map_err(Failed::Library)
    }

    /// Bytes that a program holds.
    ///
    /// # Safety
    /// The functions tell and write as many bytes of a program that lives.
    unsafe fn output(
        &self,
        program: Program,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        write: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> Result<Vec<u8>, String> {
        let mut bytes = 0;
        // SAFETY: the caller's promise.
        self.check(unsafe { size(program, &mut bytes) })?;
        let mut out = vec![0u8; bytes];
        // SAFETY: as above, with room for what it said.
        self.check(unsafe { write(program, out.as_mut_ptr().cast()) })?;
        Ok(out)
    }

    fn check(&self, result: c_int) -> Result<(), String> {
        if result == 0 {
            return Ok(());
        }
        // SAFETY: it takes any number and returns a constant text.
        let words = unsafe { (self.functions.error_string)(result) };
        // SAFETY: as above.
        let words = if words.is_null() { "".into() } else { unsafe { CStr::from_ptr(words) }.to_string_lossy() };
        Err(format!("it fails with {words} ({result})"))
    }
}

/// NVRTC_ERROR_COMPILATION: the source is at fault.
const COMPILATION_FAILED: c_int = 6;

/// A program, destroyed at the end.
struct Open {
    program: Program,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.program.is_null() {
            // SAFETY: created once and not destroyed before.
            unsafe { (self.destroy)(&mut self.program) };
        }
    }
}

impl Functions {
    /// # Safety
    /// The library is NVRTC.
    unsafe fn of(library: &Library) -> Result<Functions, libloading::Error> {
        // SAFETY: the caller's promise; the fields have the types of NVRTC's header.
        unsafe {
            Ok(Functions {
                version: *library.get(b"nvrtcVersion\0")?,
                error_string: *library.get(b"nvrtcGetErrorString\0")?,
                create: *library.get(b"nvrtcCreateProgram\0")?,
                compile: *library.get(b"nvrtcCompileProgram\0")?,
                log_size: *library.get(b"nvrtcGetProgramLogSize\0")?,
                log: *library.get(b"nvrtcGetProgramLog\0")?,
                cubin_size: *library.get(b"nvrtcGetCUBINSize\0")?,
                cubin: *library.get(b"nvrtcGetCUBIN\0")?,
                destroy: *library.get(b"nvrtcDestroyProgram\0")?,
                arch_count: *library.get(b"nvrtcGetNumSupportedArchs\0")?,
                archs: *library.get(b"nvrtcGetSupportedArchs\0")?,
            })
        }
    }
}

/// Loads a library by its file, and before it the file beside it that it will ask the loader for: the loader then knows that name already.
fn open_file(file: &Path) -> Result<Library, String> {
    let beside = file.parent().and_then(|folder| folder.read_dir().ok()).into_iter().flatten().flatten();
    for entry in beside.filter(|entry| entry.file_name().to_string_lossy().starts_with(BUILTINS)) {
        // SAFETY: it has no initialisers with preconditions. One that does not load is seen when NVRTC misses it.
        if let Ok(builtins) = unsafe { Library::new(entry.path()) } {
            std::mem::forget(builtins);
        }
    }
    // SAFETY: NVRTC's initialisers have no preconditions.
    unsafe { Library::new(file) }.map_err(in_words)
}

/// What the loader says: the error itself tells only which of its calls failed.
fn in_words(error: libloading::Error) -> String {
    std::error::Error::source(&error).map_or_else(|| error.to_string(), |source| source.to_string())
}

fn toolkit_files() -> impl Iterator<Item = PathBuf> {
    let homes = std::env::var_os("CUDA_HOME").filter(|home| !home.is_empty()).map(PathBuf::from).into_iter().chain([TOOLKIT.into()]);
    homes.flat_map(|home: PathBuf| TOOLKIT_FOLDERS.map(|folder| home.join(folder))).flat_map(|folder| NAMES.map(|name| folder.join(name)))
}

fn text(text: &str) -> Result<CString, Failed> {
    CString::new(text).map_err(|_| Failed::Library("it takes no text with a zero byte".into()))
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).collect()
}
