//! A model's weights: one safetensors file or several with an index, which together hold exactly the tensors that the configuration asks for.
//!
//! Opening looks at headers only; nothing is read ahead, so a large checkpoint opens at once. [`Checkpoint::verify_finite`] reads everything.

use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path, PathBuf};

use super::config::ModelConfig;
use super::error::ModelError;
use super::files;
use super::safetensors_file::{SafetensorsFile, UniqueMap};
use super::tensor_view::TensorView;
use super::weights::TensorSource;

const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";
/// Largest index that is read, in bytes.
const MAX_INDEX_BYTES: u64 = 64 << 20;

/// The weights of a model folder, mapped and checked against its configuration.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    files: Vec<SafetensorsFile>,
    /// File of each tensor of the model, in the order of [`ModelConfig::tensors`].
    places: Vec<(String, usize)>,
    by_name: HashMap<String, usize>,
}

impl Checkpoint {
    /// Maps `dir/model.safetensors`, or else the shards that `dir/model.safetensors.index.json` names, and checks that they hold the
    /// tensors of `config`, each with its shape in BF16, F16 or F32, and no others. Accepted beside them are buffers that older
    /// transformers saved (`rotary_emb.inv_freq`) and, in a tied model, an `lm_head.weight` with the same bytes as the embedding.
    pub fn open(dir: &Path, config: &ModelConfig) -> Result<Self, ModelError> {
        files::require_folder(dir)?;
        let there = |name: &str| dir.join(name).symlink_metadata().is_ok();
        let (files, found) = if there(SINGLE_FILE) {
            let file = SafetensorsFile::open_or_advise(&dir.join(SINGLE_FILE), "put the weights themselves there")?;
            let found = file.tensors().map(|tensor| (tensor.name.to_owned(), 0)).collect();
            (vec![file], found)
        } else if there(INDEX_FILE) {
            open_shards(dir, &dir.join(INDEX_FILE))?
        } else {
            return Err(ModelError::file(dir, format!("holds neither {SINGLE_FILE} nor {INDEX_FILE}; {}", advise_without_weights(dir))));
        };
        Self::of_model(dir, files, found, config)
    }

    /// Checks the tensors that were found against those of the model, and keeps the model's.
    fn of_model(dir: &Path, files: Vec<SafetensorsFile>, found: BTreeMap<String, usize>, config: &ModelConfig) -> Result<Self, ModelError> {
        let wanted = config.tensors();
        let mut places = Vec::with_capacity(wanted.len());
        let mut missing = Vec::new();
        for (name, shape) in &wanted {
            let Some(&file) = found.get(name) else {
                missing.push(name.as_str());
                continue;
            };
            let tensor = files[file].tensor(name)?;
            let fail = |problem: String| Err(ModelError::tensor(files[file].path(), name, problem));
            if tensor.shape != *shape {
                return fail(format!(
                    "has shape {:?}, but config.json asks for {shape:?}; give the config.json of this checkpoint",
                    tensor.shape
                ));
            }
            if !tensor.dtype.is_weight() {
                return fail(format!("has dtype {}; weights must be BF16, F16 or F32, so convert the checkpoint", tensor.dtype));
            }
            places.push((name.clone(), file));
        }
        let by_name: HashMap<String, usize> = places.iter().cloned().collect();
        let extra = found.iter().find(|(name, _)| !by_name.contains_key(*name) && !is_harmless(name, config));
        if let Some(first) = missing.first() {
            return Err(ModelError::tensor(dir, *first, explain_missing(first, missing.len(), wanted.len(), extra.map(|(name, _)| name))));
        }
        if let Some((name, &file)) = extra {
            let problem = format!(
                "is not part of a {} model as config.json describes it; give the config.json of this checkpoint, or export it without this tensor",
                config.architecture.model_type()
            );
            return Err(ModelError::tensor(files[file].path(), name, problem));
        }
        let checkpoint = Checkpoint { dir: dir.to_owned(), files, places, by_name };
        if config.tie_word_embeddings
            && let Some(&file) = found.get("lm_head.weight")
        {
            let head = checkpoint.files[file].tensor("lm_head.weight")?;
            let embedding = checkpoint.tensor("model.embed_tokens.weight")?;
            check_tied_head(&checkpoint.files[file], &head, &embedding)?;
        }
        Ok(checkpoint)
    }

    /// All tensors of the model, in the order of [`ModelConfig::tensors`].
    pub fn tensors(&self) -> impl Iterator<Item = Result<TensorView<'_>, ModelError>> {
        self.places.iter().map(|(name, file)| self.files[*file].tensor(name))
    }

    /// The files, in the order of their names.
    pub fn files(&self) -> &[SafetensorsFile] {
        &self.files
    }

    /// The files, and the file of each tensor in the order of [`ModelConfig::tensors`].
    pub(super) fn into_parts(self) -> (Vec<SafetensorsFile>, Vec<usize>) {
        (self.files, self.places.into_iter().map(|(_, file)| file).collect())
    }

    /// Reads every tensor of the model and refuses the first NaN or infinity.
    pub fn verify_finite(&self) -> Result<(), ModelError> {
        for (name, file) in &self.places {
            let file = &self.files[*file];
            let tensor = file.tensor(name)?;
            if let Some(index) = tensor.first_non_finite() {
                let value = tensor.value(index).unwrap_or(f64::NAN);
                return Err(ModelError::NonFinite { path: file.path().to_owned(), tensor: name.clone(), index, value });
            }
        }
        Ok(())
    }
}

impl TensorSource for Checkpoint {
    fn tensor(&self, name: &str) -> Result<TensorView<'_>, ModelError> {
        match self.by_name.get(name) {
            Some(&file) => self.files[file].tensor(name),
            None => Err(ModelError::tensor(&self.dir, name, "is not part of this model; ModelConfig::tensors lists those that are")),
        }
    }
}

/// The shards of an index, and the shard of each tensor. Index and shards must say the same.
fn open_shards(dir: &Path, index: &Path) -> Result<(Vec<SafetensorsFile>, BTreeMap<String, usize>), ModelError> {
    #[derive(serde::Deserialize)]
    #[serde(expecting = "an object with `weight_map`")]
    struct Index {
        weight_map: UniqueMap<String>,
    }
    let text = files::read_text(index, MAX_INDEX_BYTES, "put the index itself there")?;
    let Index { weight_map: UniqueMap(entries) } = serde_json::from_str(&text).map_err(|error| {
        ModelError::file(
            index,
            format!(
                "is not a safetensors index ({}): its `weight_map` must map tensor names to files; download or export it again",
                files::brief(&error)
            ),
        )
    })?;

    let mut shards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, shard) in &entries {
        // Only a file of this very folder: an index must not be able to point the server at other files of the machine.
        let mut parts = Path::new(shard).components();
        let is_plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(name)), None) if name == shard.as_str());
        if !is_plain || shard.contains(|c: char| c == '\\' || c.is_control()) || !shard.ends_with(".safetensors") {
            let problem = format!(
                "is placed in {:?}; a shard must be a .safetensors file in the same folder, named without any path",
                files::cut(shard, 100)
            );
            return Err(ModelError::tensor(index, tensor, problem));
        }
        shards.entry(shard).or_default().push(tensor);
    }

    let mut files = Vec::with_capacity(shards.len());
    let mut found = BTreeMap::new();
    for (i, (shard, listed)) in shards.into_iter().enumerate() {
        let path = dir.join(shard);
        let file = SafetensorsFile::open_or_advise(&path, &format!("{INDEX_FILE} names it, so download this shard too"))?;
        for tensor in listed {
            if !file.contains(tensor) {
                let problem = format!(
                    "is not in this shard, where {INDEX_FILE} places it; the two belong to different exports, so download both again"
                );
                return Err(ModelError::tensor(&path, tensor, problem));
            }
            found.insert(tensor.to_owned(), i);
        }
        files.push(file);
    }
    for (i, file) in files.iter().enumerate() {
        if let Some(tensor) = file.tensors().find(|tensor| found.get(tensor.name) != Some(&i)) {
            let problem = format!(
                "is in this shard, but {INDEX_FILE} does not place it there; the two belong to different exports, so download both again"
            );
            return Err(ModelError::tensor(file.path(), tensor.name, problem));
        }
    }
    Ok((files, found))
}

/// Tensors beside the model's that change nothing. A tied head is compared with the embedding later.
pub(super) fn is_harmless(name: &str, config: &ModelConfig) -> bool {
    name.ends_with("rotary_emb.inv_freq") || (config.tie_word_embeddings && name == "lm_head.weight")
}

/// A head that is written out in a model that ties it to the embedding must be the embedding.
pub(super) fn check_tied_head(file: &SafetensorsFile, head: &TensorView<'_>, embedding: &TensorView<'_>) -> Result<(), ModelError> {
    if (head.dtype, &head.shape, head.bytes) == (embedding.dtype, &embedding.shape, embedding.bytes) {
        return Ok(());
    }
    let problem =
        "differs from model.embed_tokens.weight, but config.json has tie_word_embeddings true; set it to false, or remove this tensor";
    Err(ModelError::tensor(file.path(), head.name, problem))
}

fn explain_missing(first: &str, missing: usize, wanted: usize, extra: Option<&String>) -> String {
    let mut problem = format!("is missing ({missing} of {wanted} tensors are)");
    match extra {
        Some(extra) => {
            problem += &format!(", while `{extra}` is there, which is no part of this model; the names must be those of Hugging Face")
        }
        None if first == "lm_head.weight" => problem += "; if the head is the embedding, set tie_word_embeddings to true in config.json",
        None => problem += "; give the config.json of this checkpoint, or download or export it again",
    }
    problem
}

/// What to do about a folder without safetensors, by what it holds instead.
fn advise_without_weights(dir: &Path) -> &'static str {
    let holds = |ending: &str| {
        let names = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.into_iter().any(|name| name.to_string_lossy().ends_with(ending))
    };
    if holds("adapter_model.safetensors") {
        "it is an adapter, so merge it into its base model and give the merged folder"
    } else if holds(".bin") || holds(".pt") || holds(".pth") {
        "save its PyTorch weights as safetensors first"
    } else if holds(".gguf") {
        "convert its GGUF file to a Hugging Face folder first"
    } else {
        "download or export the weights too"
    }
}
