//! The tensors of one version of a model's weights, wherever they lie: all in one pushed file, in the files of a folder, or some in a push
//! and the rest where the version before it had them.
//!
//! A [`Layout`] says what a version must hold: the tensors of the model the server started with, each with its shape and its type, so that
//! every version packs to the same size and is served with the same arithmetic. A [`TensorSet`] holds exactly those. Its digest is taken of
//! names, types, shapes and bytes in the layout's order, so it does not depend on how the tensors came.

use std::collections::HashMap;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::checkpoint::{Checkpoint, check_tied_head, is_harmless};
use super::config::ModelConfig;
use super::error::ModelError;
use super::safetensors_file::SafetensorsFile;
use super::safetensors_writer::write_safetensors;
use super::tensor_view::{Dtype, TensorView};
use super::weights::TensorSource;

/// What to do about a missing tensor.
const ADVICE: &str = "push all tensors, or name the live version with base= to take the rest from it";

/// What a version's tensor must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorSpec {
    /// Its Hugging Face name.
    pub name: String,
    /// Type of its numbers.
    pub dtype: Dtype,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    fn elements(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product()
    }
}

/// The tensors of a model, in the order of [`ModelConfig::tensors`].
#[derive(Debug)]
pub struct Layout {
    tensors: Vec<TensorSpec>,
    by_name: HashMap<String, usize>,
    config: ModelConfig,
}

impl Layout {
    /// The tensors.
    pub fn tensors(&self) -> &[TensorSpec] {
        &self.tensors
    }

    /// Their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(|tensor| tensor.name.as_str())
    }

    /// Bytes of all tensors.
    pub fn num_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.elements() * tensor.dtype.size() as u64).sum()
    }

    /// No file that could be right is larger. Tensors of a wrong type count as well: who sends them is to hear which one is wrong.
    pub fn most_file_bytes(&self) -> u64 {
        let data: u64 = self.tensors.iter().map(|tensor| tensor.elements() * (tensor.dtype.size() as u64).max(4)).sum();
        let header: u64 = self.tensors.iter().map(|tensor| tensor.name.len() as u64 + 256).sum();
        // A tied head may be written out.
        let head = self.by_name.get("model.embed_tokens.weight").filter(|_| self.config.tie_word_embeddings);
        let head = head.map_or(0, |&place| self.tensors[place].elements() * 4);
        data + head + 2 * header + (1 << 20)
    }

    /// Checks one tensor of `file`, its numbers too; gives its place.
    fn check(&self, file: &SafetensorsFile, tensor: &TensorView<'_>) -> Result<usize, ModelError> {
        let fail = |problem: String| Err(ModelError::tensor(file.path(), tensor.name, problem));
        let Some(&place) = self.by_name.get(tensor.name) else {
            return fail("is not part of this model; the names must be those of its checkpoint".into());
        };
        let spec = &self.tensors[place];
        if tensor.shape != spec.shape {
            return fail(format!("has shape {:?}, but this model's has {:?}", tensor.shape, spec.shape));
        }
        if tensor.dtype != spec.dtype {
            return fail(format!("has dtype {}, but this model is served in {}; convert it before the push", tensor.dtype, spec.dtype));
        }
        if let Some(index) = tensor.first_non_finite() {
            let value = tensor.value(index).unwrap_or(f64::NAN);
            return Err(ModelError::NonFinite { path: file.path().to_owned(), tensor: tensor.name.to_owned(), index, value });
        }
        Ok(place)
    }
}

/// The tensors of one version. Cheap to clone; the files stay mapped while it lives.
#[derive(Clone, Debug)]
pub struct TensorSet {
    layout: Arc<Layout>,
    files: Vec<Arc<SafetensorsFile>>,
    /// File of each tensor of the layout.
    places: Arc<[usize]>,
}

impl TensorSet {
    /// The tensors of the folder that a server starts with; they make the layout.
    pub fn of_model(checkpoint: Checkpoint, config: &ModelConfig) -> Result<Self, ModelError> {
        let tensors: Vec<TensorSpec> = checkpoint
            .tensors()
            .map(|tensor| tensor.map(|t| TensorSpec { name: t.name.to_owned(), dtype: t.dtype, shape: t.shape }))
            .collect::<Result<_, _>>()?;
        let by_name = tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.clone(), i)).collect();
        let (files, places) = checkpoint.into_parts();
        let layout = Arc::new(Layout { tensors, by_name, config: config.clone() });
        Ok(TensorSet { layout, files: files.into_iter().map(Arc::new).collect(), places: places.into() })
    }

    /// The tensors of one file, each checked against the layout and for NaN and infinity; those that are not in it come from `base`.
    pub fn of_file(layout: &Arc<Layout>, file: SafetensorsFile, base: Option<&TensorSet>) -> Result<Self, ModelError> {
        let mut places: Vec<Option<usize>> = vec![None; layout.tensors.len()];
        let mut head = None;
        for tensor in file.tensors() {
            // What a folder may hold beside the model's tensors, a file may too.
            if !layout.by_name.contains_key(tensor.name) && is_harmless(tensor.name, &layout.config) {
                head = Some(tensor).filter(|tensor| tensor.name == "lm_head.weight").or(head);
                continue;
            }
            places[layout.check(&file, &tensor)?] = Some(0);
        }
        if let Some(head) = head {
            let embedding = "model.embed_tokens.weight";
            let from_base = |base: &TensorSet| layout.by_name.get(embedding).map(|&place| base.files[base.places[place]].clone());
            match file.tensor(embedding).ok() {
                Some(embedding) => check_tied_head(&file, &head, &embedding)?,
                None => {
                    if let Some(kept) = base.and_then(from_base) {
                        check_tied_head(&file, &head, &kept.tensor(embedding)?)?;
                    }
                }
            }
        }
        let mut files = Vec::new();
        if let Some(base) = base {
            // Only the files that are still needed: versions that build on each other must not hold every file there ever was.
            let mut moved: HashMap<usize, usize> = HashMap::new();
            for (place, at) in places.iter_mut().zip(&*base.places).filter(|(place, _)| place.is_none()) {
                let next = moved.len() + 1;
                let to = *moved.entry(*at).or_insert(next);
                if to > files.len() {
                    files.push(base.files[*at].clone());
                }
                *place = Some(to);
            }
        }
        let missing: Vec<usize> = places.iter().enumerate().filter(|(_, place)| place.is_none()).map(|(i, _)| i).collect();
        if let Some(&first) = missing.first() {
            let problem = format!("is missing ({} of {} tensors are); {ADVICE}", missing.len(), places.len());
            return Err(ModelError::tensor(file.path(), &layout.tensors[first].name, problem));
        }
        files.insert(0, Arc::new(file));
        Ok(TensorSet { layout: layout.clone(), files, places: places.into_iter().flatten().collect() })
    }

    /// A file that was checked before and holds all tensors.
    pub fn of_checked_file(layout: &Arc<Layout>, file: SafetensorsFile) -> Result<Self, ModelError> {
        layout.names().try_for_each(|name| file.tensor(name).map(drop))?;
        Ok(TensorSet { layout: layout.clone(), files: vec![Arc::new(file)], places: vec![0; layout.tensors.len()].into() })
    }

    /// Whether the tensor at this place of the layout comes from the base.
    pub fn is_from_base(&self, place: usize) -> bool {
        self.places.get(place).is_some_and(|&file| file > 0)
    }

    /// All tensors of a Hugging Face folder (its config.json is not read), checked in the same way.
    pub fn of_folder(layout: &Arc<Layout>, dir: &Path) -> Result<Self, ModelError> {
        let checkpoint = Checkpoint::open(dir, &layout.config)?;
        let (files, places) = checkpoint.into_parts();
        for (spec, &file) in layout.tensors.iter().zip(&places) {
            let file = &files[file];
            layout.check(file, &file.tensor(&spec.name)?)?;
        }
        Ok(TensorSet { layout: layout.clone(), files: files.into_iter().map(Arc::new).collect(), places: places.into() })
    }

    /// What it must hold.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// The file, if all its tensors are in one.
    pub fn only_file(&self) -> Option<&SafetensorsFile> {
        let file = self.files.first()?;
        self.places.iter().all(|&place| place == 0).then_some(file)
    }

    /// The tensors, in the layout's order.
    pub fn tensors(&self) -> impl Iterator<Item = Result<TensorView<'_>, ModelError>> {
        self.layout.tensors.iter().zip(&*self.places).map(|(spec, &file)| self.files[file].tensor(&spec.name))
    }

    /// Reads everything.
    pub fn digests(&self) -> Result<Digests, ModelError> {
        let tensors = self.tensors().map(|tensor| tensor.map(|t| *blake3::hash(t.bytes).as_bytes())).collect::<Result<_, _>>()?;
        Ok(Digests { tensors })
    }

    /// The digest of the whole.
    pub fn digest(&self, digests: &Digests) -> String {
        let mut hasher = blake3::Hasher::new();
        for (spec, digest) in self.layout.tensors.iter().zip(&digests.tensors) {
            hasher.update(format!("{} {} {:?}\n", spec.name, spec.dtype, spec.shape).as_bytes());
            hasher.update(digest);
        }
        format!("blake3:{}", hasher.finalize().to_hex())
    }

    /// Writes all tensors as one safetensors file.
    pub fn write(&self, file: &std::fs::File) -> std::io::Result<()> {
        let tensors = self.tensors().collect::<Result<Vec<_>, _>>().map_err(std::io::Error::other)?;
        let mut out = BufWriter::new(file);
        write_safetensors(&mut out, &tensors)?;
        out.flush()
    }
}

impl TensorSource for TensorSet {
    fn tensor(&self, name: &str) -> Result<TensorView<'_>, ModelError> {
        match self.layout.by_name.get(name) {
            Some(&i) => self.files[self.places[i]].tensor(name),
            None => Err(ModelError::tensor("", name, "is not part of this model")),
        }
    }
}

/// BLAKE3 of each tensor's bytes, in the layout's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digests {
    tensors: Vec<[u8; 32]>,
}

impl Digests {
    /// Whether the tensor at this place is the same in both.
    pub fn same(&self, other: &Digests, place: usize) -> bool {
        self.tensors.get(place) == other.tensors.get(place)
    }

    /// In hexadecimal.
    pub fn hex(&self) -> impl Iterator<Item = String> {
        self.tensors.iter().map(|digest| blake3::Hash::from_bytes(*digest).to_hex().to_string())
    }
}
