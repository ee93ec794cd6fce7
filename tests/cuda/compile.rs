//! How kernels become cubins. The compiler is NVRTC, which needs no card: where it is not found, the tests that need it are reported as ignored.
//!
//! Compiling everything takes half a minute of a processor, so cubins are kept in the build folder by the very cache that is tested, and the tests
//! work on copies of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use adaroll::ops::cuda::compile::cubin::{self, Resources};
use adaroll::ops::cuda::compile::nvrtc::Nvrtc;
use adaroll::ops::cuda::compile::sources::{Architecture, FAMILIES, Family};
use adaroll::ops::cuda::compile::{KernelError, KernelOptions, Kernels, Manifest, cached, kernels_for, make, shipped, write_shipped};
use libtest_mimic::Trial;

use crate::kit::{Numbers, emulated, trial};

const SM_80: (i32, i32) = (8, 0);
const SM_90: (i32, i32) = (9, 0);

/// The tests.
pub fn trials() -> Vec<Trial> {
    let with_compiler = [
        trial("compile::every_kernel_compiles_for_sm_80_and_sm_90", every_kernel_compiles),
        trial("compile::a_cached_cubin_is_taken_and_a_damaged_one_made_again", cache),
        trial("compile::a_cache_that_cannot_be_written_is_no_error", unwritable_cache),
        trial("compile::shipped_cubins_come_back_with_what_they_take", shipped_cubins),
        trial("compile::a_cubin_says_what_its_kernels_take", takes),
        trial("compile::damaged_cubins_are_errors", damaged_cubins),
        trial("compile::errors_of_a_source_name_family_and_line", broken_source),
        trial("compile::an_unknown_architecture_is_a_sentence", unknown_architecture),
        trial("compile::the_command_builds_and_lists", command),
    ];
    let without = [
        trial("compile::shipped_images_need_not_be_cubins", shipped_texts),
        trial("compile::a_folder_that_does_not_fit_is_refused_with_the_reason", refusals),
        trial("compile::a_file_that_is_no_compiler_is_a_sentence", no_compiler),
    ];
    // A compiler that is named and does not work is no reason to ignore anything.
    let missing = compiler().as_ref().err().filter(|_| std::env::var_os("ADAROLL_NVRTC").is_none());
    if let Some(why) = missing {
        eprintln!("the tests that compile kernels are ignored: {why}");
    }
    with_compiler.into_iter().map(|t| t.with_ignored_flag(missing.is_some())).chain(without).collect()
}

fn compiler() -> &'static Result<Nvrtc, KernelError> {
    static COMPILER: OnceLock<Result<Nvrtc, KernelError>> = OnceLock::new();
    COMPILER.get_or_init(|| KernelOptions::default().compiler())
}

fn nvrtc() -> &'static Nvrtc {
    compiler().as_ref().unwrap()
}

fn kept() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels")
}

fn with_cache(folder: &Path) -> KernelOptions {
    KernelOptions { cache: Some(folder.to_owned()), ..KernelOptions::default() }
}

/// Every cubin of an architecture, and one compilation of each for all tests.
fn cubins(arch: (i32, i32)) -> Kernels {
    static COMPILING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = COMPILING.lock();
    make(arch.into(), nvrtc(), &with_cache(&kept()), |_| {}, &|_, _| {}).unwrap_or_else(|e| panic!("{e}"))
}

/// A copy of the kept cache with the cubins of an architecture.
fn copied_cache(arch: (i32, i32), to: &Path) {
    cubins(arch);
    std::fs::create_dir_all(to).unwrap();
    for family in &FAMILIES {
        let file = cached_file(&kept(), family.name, arch);
        std::fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
    }
}

/// The newest file of a family: the folder may have those of other sources too.
fn cached_file(folder: &Path, family: &str, arch: (i32, i32)) -> PathBuf {
    let prefix = format!("{family}-{}-", Architecture::from(arch));
    let files = folder.read_dir().unwrap().flatten().map(|e| e.path());
    let ours = files.filter(|f| f.file_name().unwrap().to_str().unwrap().starts_with(&prefix));
    let bytes = cubins(arch).families.into_iter().find(|(name, _)| name == family).unwrap().1;
    ours.into_iter().find(|f| std::fs::read(f).unwrap().starts_with(&bytes)).unwrap()
}

fn by_name(kernels: &Kernels) -> BTreeMap<&str, &[u8]> {
    kernels.families.iter().map(|(name, image)| (name.as_str(), image.as_slice())).collect()
}

fn resources(image: &[u8]) -> Vec<(String, Resources)> {
    cubin::read(image).unwrap_or_else(|e| panic!("{e}")).kernels
}

fn every_kernel_compiles() {
    for arch in [SM_80, SM_90] {
        let made = cubins(arch);
        assert_eq!(made.families.len(), FAMILIES.len());
        for (name, image) in &made.families {
            let family = Family::named(name).unwrap();
            let found = resources(image);
            let mut wanted: Vec<&str> = family.kernels().iter().map(|(kernel, _)| *kernel).collect();
            wanted.sort_unstable();
            assert_eq!(found.iter().map(|(kernel, _)| kernel.as_str()).collect::<Vec<_>>(), wanted, "{name}: what the host starts");
            for (kernel, takes) in &found {
                let what = format!("{kernel} for {}: {takes:?}", made.arch);
                assert!((1..=255).contains(&takes.registers), "{what}");
                assert_eq!(takes.local_bytes, 0, "{what}: registers are spilled, or an array is not in registers");
                assert!(takes.shared_bytes <= 48 << 10, "{what}");
                assert!(takes.parameters.iter().all(|size| [4, 8].contains(size)), "{what}");
                assert!(takes.parameters.iter().sum::<u32>() <= takes.parameter_bytes, "{what}");
            }
        }
    }
    // As kernels/README.md has it: out, out_stride, x, x_stride, w, w_stride, rows, outputs, inputs.
    let made = cubins(SM_90);
    let gemm = resources(by_name(&made)["gemm"]);
    assert!(gemm.iter().all(|(_, takes)| takes.parameters == [8, 4, 8, 4, 8, 4, 4, 4, 4]), "{gemm:?}");
}

fn cache() {
    let folder = tempfile::tempdir().unwrap();
    copied_cache(SM_90, folder.path());
    let options = with_cache(folder.path());
    let first = cubins(SM_90);
    let file = cached_file(folder.path(), "embed", SM_90);
    let whole = std::fs::read(&file).unwrap();
    let made = || {
        let compiled = Mutex::new(Vec::new());
        let done = |family: &'static str, fresh: bool| compiled.lock().unwrap().extend(fresh.then_some(family));
        let kernels = make(SM_90.into(), nvrtc(), &options, |_| {}, &done).unwrap();
        assert_eq!(by_name(&kernels), by_name(&first), "the same bytes whether compiled or read");
        compiled.into_inner().unwrap()
    };
    let written = || file.metadata().unwrap().modified().unwrap();
    let before = written();
    assert!(made().is_empty(), "everything is in the cache");
    assert_eq!(written(), before, "nothing is written again");

    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    for damaged in [&flipped[..], &whole[..whole.len() - 1], &whole[..20], &[]] {
        std::fs::write(&file, damaged).unwrap();
        assert_eq!(made(), ["embed"], "{} of {} bytes", damaged.len(), whole.len());
        assert_eq!(std::fs::read(&file).unwrap(), whole, "made again");
    }
    let files = folder.path().read_dir().unwrap().count();
    assert_eq!(files, FAMILIES.len(), "no temporary file stays");

    let options = KernelOptions { shipped: None, ..options };
    assert!(cached(Architecture::from(SM_80), nvrtc(), &options).is_empty(), "another architecture has files of its own");
}

fn unwritable_cache() {
    let folder = tempfile::tempdir().unwrap();
    copied_cache(SM_90, folder.path());
    // A folder in the file's place: it can be neither read nor replaced, whoever runs the test.
    let file = cached_file(folder.path(), "embed", SM_90);
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let made = make(SM_90.into(), nvrtc(), &with_cache(folder.path()), |_| {}, &|_, _| {}).unwrap();
    assert_eq!(by_name(&made), by_name(&cubins(SM_90)));
    assert_eq!(folder.path().read_dir().unwrap().count(), FAMILIES.len(), "no temporary file stays");
}

fn shipped_cubins() {
    let folder = tempfile::tempdir().unwrap();
    let made = cubins(SM_90);
    let manifest = write_shipped(folder.path(), "sm_90", made.families.clone()).unwrap();
    let text = std::fs::read_to_string(folder.path().join("sm_90/manifest.json")).unwrap();
    assert_eq!(serde_json::from_str::<Manifest>(&text).unwrap(), manifest);
    for (name, image) in &made.families {
        let entry = &manifest.families[name];
        assert_eq!(entry.kernels, resources(image).into_iter().collect());
        assert_eq!(entry.nvrtc.as_ref(), Some(&nvrtc().version));
        assert!(entry.flags.contains(&"--fmad=false".to_owned()));
    }
    let options = KernelOptions { shipped: Some(folder.path().to_owned()), nvrtc: Some("not needed".into()), cache: None };
    let found = kernels_for(SM_90, &options).unwrap();
    assert_eq!(by_name(&found), by_name(&made));
    assert!(found.origin.contains(folder.path().to_str().unwrap()), "{}", found.origin);
}

fn takes() {
    let source = "#include \"common.cuh\"
KERNEL(nothing)() {}
KERNEL(shared)(u32 i, u32* x) {
    __shared__ u32 values[4];
    values[i] = THREAD;
    block_sync();
    *x = values[1];
}
// An array at indices that nobody knows before is in local memory.
KERNEL(local)(u64 i, u32* x, u32 j) {
    u32 values[100];
    for (u32 k = 0; k < 100; k++) values[k] = x[k];
    for (u32 k = 0; k < 100; k++) values[x[k] % 100] += 1;
    x[j] = values[i];
}
";
    let family = Family { name: "takes", source };
    for arch in [SM_80, SM_90, (10, 0), (12, 0)] {
        let image = nvrtc().compile(&family, arch.into()).unwrap_or_else(|e| panic!("{e}"));
        let found = resources(&image);
        let told: Vec<_> = found
            .iter()
            .map(|(kernel, takes)| {
                (kernel.as_str(), takes.shared_bytes, takes.local_bytes, takes.parameters.as_slice(), takes.parameter_bytes)
            })
            .collect();
        let wanted: [(_, _, _, &[u32], _); 3] =
            [("local", 0, 400, &[8, 8, 4], 20), ("nothing", 0, 0, &[], 0), ("shared", 16, 0, &[4, 8], 16)];
        assert_eq!(told, wanted, "{arch:?}");
        assert!(found.iter().all(|(_, takes)| takes.registers > 0), "{found:?}");
    }
}

fn damaged_cubins() {
    let made = cubins(SM_90);
    let whole = by_name(&made)["embed"];
    assert!(cubin::read(whole).is_ok());
    for length in 0..whole.len() {
        // The last bytes are the program headers, which say nothing that is read.
        let found = cubin::read(&whole[..length]);
        assert!(found.is_err() || length > whole.len() / 2, "{length} of {} bytes", whole.len());
    }
    let mut numbers = Numbers(7);
    for _ in 0..20_000 {
        let mut bytes = whole.to_vec();
        for _ in 0..1 + numbers.below(8) {
            let at = numbers.below(bytes.len());
            bytes[at] = [0, 1, 0x7f, 0x80, 0xff, numbers.next() as u8][numbers.below(6)];
        }
        // An answer of either kind, and no panic.
        let _ = cubin::read(&bytes);
    }
}

fn broken_source() {
    let broken = Family { name: "broken", source: "#include \"common.cuh\"\nKERNEL(broken)(u32* x) {\n    *x = nothing;\n}\n" };
    let error = nvrtc().compile(&broken, SM_90.into()).unwrap_err().to_string();
    for part in ["broken", "sm_90", "broken.cu(3)", "nothing"] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

fn unknown_architecture() {
    let error = nvrtc().compile(&FAMILIES[0], (99, 9).into()).unwrap_err().to_string();
    for part in ["sm_999", "sm_90", &nvrtc().version] {
        assert!(error.contains(part), "{part} is not in: {error}");
    }
    let refused = |text: &str| text.parse::<Architecture>().unwrap_err();
    assert!(refused("sm_75").contains("sm_80 is the oldest"));
    for text in ["90", "sm_", "sm_9", "sm_90a", "sm_+90", "sm_9000", "SM_90"] {
        assert!(refused(text).contains("give sm_"), "{text}");
    }
    assert_eq!("sm_120".parse::<Architecture>().unwrap(), Architecture::from((12, 0)));
}

fn shipped_texts() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = write_shipped(folder.path(), "sm_90", emulated()).unwrap();
    assert!(manifest.families.values().all(|entry| entry.kernels.is_empty() && entry.nvrtc.is_none()));
    let found = shipped(SM_90.into(), &KernelOptions { shipped: Some(folder.path().to_owned()), ..KernelOptions::default() });
    let found = found.unwrap().unwrap();
    assert_eq!(by_name(&found)["gemm"], b"ADAROLL-EMULATOR gemm");
    assert_eq!(found.families.len(), FAMILIES.len());

    let bytes = [("embed", b"\x7fELF and nothing more")];
    let error = write_shipped(folder.path(), "sm_90", bytes).unwrap_err().to_string();
    assert!(error.starts_with("the image of embed is no cubin: "), "{error}");
    let error = write_shipped(folder.path(), "sm_90", [("../embed", b"x")]).unwrap_err().to_string();
    assert!(error.contains("no family"), "{error}");
}

fn refusals() {
    let folder = tempfile::tempdir().unwrap();
    let options = KernelOptions {
        shipped: Some(folder.path().to_owned()),
        nvrtc: Some(folder.path().join("libnvrtc.so.13")),
        cache: Some(folder.path().join("cache")),
    };
    let place = folder.path().join("sm_90");
    let manifest = place.join("manifest.json");
    let reason = || {
        let reason = shipped(SM_90.into(), &options).unwrap().unwrap_err();
        // Who cannot compile either hears both reasons.
        let error = kernels_for(SM_90, &options).unwrap_err().to_string();
        assert!(error.starts_with("NVRTC (") && error.ends_with(&reason), "{error}");
        reason
    };
    assert!(reason().ends_with("has no kernels for sm_90, no kernels at all"), "{}", reason());
    write_shipped(folder.path(), "sm_80", emulated()).unwrap();
    assert!(reason().ends_with("has no kernels for sm_90, only sm_80"), "{}", reason());

    let mut written = write_shipped(folder.path(), "sm_90", emulated()).unwrap();
    assert!(shipped(SM_90.into(), &options).unwrap().is_ok());
    let write = |manifest_: &Manifest| std::fs::write(&manifest, serde_json::to_string(manifest_).unwrap()).unwrap();
    let right = written.clone();
    let digest = &mut written.families.get_mut("gemm").unwrap().source;
    *digest = digest.chars().rev().collect();
    write(&written);
    assert!(reason().ends_with("were made from other sources of gemm than this program's"), "{}", reason());
    written.families.remove("gemm");
    write(&written);
    assert!(reason().ends_with("has no kernels of gemm"), "{}", reason());
    write(&right);
    std::fs::write(place.join("gemm.cubin"), "ADAROLL-EMULATOR gemm.").unwrap();
    assert!(reason().ends_with("gemm.cubin: is not the file that its manifest means"), "{}", reason());
    std::fs::remove_file(place.join("gemm.cubin")).unwrap();
    assert!(reason().contains("gemm.cubin: cannot be read"), "{}", reason());
    std::fs::write(&manifest, "{").unwrap();
    assert!(reason().contains("manifest.json: is no manifest of kernels"), "{}", reason());
    std::fs::remove_file(&manifest).unwrap();
    assert!(reason().contains("manifest.json: cannot be read"), "{}", reason());
}

fn no_compiler() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libnvrtc.so.13");
    for content in [None, Some("no library")] {
        content.into_iter().for_each(|text| std::fs::write(&file, text).unwrap());
        let error = Nvrtc::find(Some(&file)).err().unwrap().to_string();
        assert!(error.starts_with(&format!("NVRTC ({}) cannot be used: ", file.display())), "{error}");
        let reason = if content.is_some() { "file too short" } else { "No such file" };
        assert!(error.contains(reason), "{reason} is not in: {error}");
    }
}

fn command() {
    let folder = tempfile::tempdir().unwrap();
    let caches = folder.path().join("caches");
    copied_cache(SM_80, &caches.join("adaroll/kernels"));
    copied_cache(SM_90, &caches.join("adaroll/kernels"));
    let out = folder.path().join("out");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_adaroll"));
        command.arg("kernels").args(arguments).env("XDG_CACHE_HOME", &caches).env_remove("ADAROLL_KERNELS").output().unwrap()
    };
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();

    let build = ["build", "--arch", "sm_80", "--arch", "sm_90", "-o", out.to_str().unwrap()];
    let built = run(&build);
    let (stdout, stderr) = (text(&built.stdout), text(&built.stderr));
    assert!(built.status.success(), "{stderr}");
    assert_eq!(stderr.lines().filter(|line| line.ends_with("from the cache")).count(), 2 * FAMILIES.len(), "{stderr}");
    for kernel in FAMILIES.iter().flat_map(|family| family.kernels()) {
        let rows = stdout.lines().filter(|line| line.split_whitespace().nth(1) == Some(kernel.0));
        assert_eq!(rows.count(), 2, "a row of {} for each architecture:\n{stdout}", kernel.0);
    }

    let listed = run(&["list", "--json", "--arch", "sm_90", "--arch", "sm_86", "--kernels", out.to_str().unwrap()]);
    let list: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let [sm_86, sm_90] = list["architectures"].as_array().unwrap().as_slice() else { panic!("{list}") };
    assert!(sm_86["not_shipped"].as_str().unwrap().ends_with("only sm_80, sm_90"), "{sm_86}");
    assert!(sm_86["origin"].as_str().unwrap().starts_with("NVRTC at the first start"), "{sm_86}");
    assert!(sm_90["origin"].as_str().unwrap().starts_with("the folder "), "{sm_90}");
    assert!(sm_90["kernels"].as_array().unwrap().iter().all(|k| k["registers"].as_u64().unwrap() > 0), "{sm_90}");
    assert!(list["nvrtc"].as_str().unwrap().starts_with(&nvrtc().version), "{list}");

    let nowhere = run(&["list", "--nvrtc", "missing", "--arch", "sm_90"]);
    let stdout = text(&nowhere.stdout);
    assert!(stdout.contains("sm_90: from nowhere") && stdout.contains("NVRTC   none: NVRTC (missing) cannot be used"), "{stdout}");

    let refused = run(&["build", "--arch", "sm_90", "--nvrtc", "missing", "-o", out.to_str().unwrap()]);
    assert!(!refused.status.success() && text(&refused.stderr).starts_with("error: NVRTC (missing) cannot be used"), "{refused:?}");
}
