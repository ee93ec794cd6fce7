//! Chat templates: the text that a model was trained to see for a list of messages.
//!
//! Templates are written for Jinja as the transformers library sets it up, and a prompt that differs by one space is another prompt.
//! So everything around the template engine follows Python: block tags take their line's whitespace and newline with them, `tojson`
//! prints what `json.dumps` prints, strings have Python's methods, and `{% generation %}` marks what the assistant said.

mod json;
mod python;
mod source;
mod strftime;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value};

use super::special_tokens::{SpecialTokens, read_object, read_text};
use super::tokenizer::TextError;

/// Around what a `{% generation %}` block printed, in the copy of a template that is rendered for the blocks' places. Not characters:
/// no text has a use for them.
const MARKS: [char; 2] = ['\u{FDD0}', '\u{FDD1}'];

/// Why there is no rendered text.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// A file of the model folder cannot be used.
    #[error(transparent)]
    File(#[from] TextError),
    /// The field of tokenizer_config.json is not a template.
    #[error(
        "{}: field chat_template: {problem}; it must be a string, or a list of objects with name and template, one of them named default",
        path.display()
    )]
    Field {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The template is not a template.
    #[error("the chat template of {origin} is broken at line {line}: {detail}; correct the template")]
    Syntax {
        /// Where the template came from.
        origin: String,
        /// Line in the template, from 1.
        line: usize,
        /// What the template engine said.
        detail: String,
    },
    /// The template called `raise_exception`.
    #[error("the chat template refuses these messages: {0}")]
    Raised(String),
    /// The template failed on these messages.
    #[error("the chat template of {origin} fails at line {line}: {detail}; check that the messages have the fields that it reads")]
    Render {
        /// Where the template came from.
        origin: String,
        /// Line in the template, from 1.
        line: usize,
        /// What the template engine said.
        detail: String,
    },
    /// A text holds the characters that mark generation blocks.
    #[error(
        "the messages or the template hold U+FDD0 or U+FDD1, which are not characters; remove them to have the assistant's parts marked"
    )]
    MarksInUse,
}

/// A model's chat template.
pub struct ChatTemplate {
    env: Environment<'static>,
    origin: String,
    sources: Vec<(String, String)>,
    special_tokens: SpecialTokens,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// The template of a model folder: chat_template.jinja (others beside it in additional_chat_templates/), or else the field
    /// `chat_template` of tokenizer_config.json. `None` if it has neither.
    pub fn from_folder(folder: &Path) -> Result<Option<ChatTemplate>, TemplateError> {
        let special_tokens = SpecialTokens::from_folder(folder)?;
        let file = folder.join("chat_template.jinja");
        if let Some(text) = read_text(&file)? {
            let mut templates = vec![("default".to_owned(), text)];
            if let Some(text) = read_text(&folder.join("additional_chat_templates").join("tool_use.jinja"))? {
                templates.push(("tool_use".to_owned(), text));
            }
            return ChatTemplate::new(file.display().to_string(), templates, special_tokens).map(Some);
        }
        let file = folder.join("tokenizer_config.json");
        let config = read_object(&file)?.unwrap_or_default();
        let Some(field) = config.get("chat_template").filter(|value| !value.is_null()) else { return Ok(None) };
        let templates = named_templates(field).map_err(|problem| TemplateError::Field { path: file.clone(), problem })?;
        ChatTemplate::new(file.display().to_string(), templates, special_tokens).map(Some)
    }

    /// A template given as text.
    pub fn from_source(source: &str, special_tokens: SpecialTokens) -> Result<ChatTemplate, TemplateError> {
        ChatTemplate::new("the given text".into(), vec![("default".into(), source.into())], special_tokens)
    }

    fn new(origin: String, sources: Vec<(String, String)>, special_tokens: SpecialTokens) -> Result<ChatTemplate, TemplateError> {
        let syntax =
            |error: Error| TemplateError::Syntax { origin: origin.clone(), line: error.line().unwrap_or(1), detail: detail(&error) };
        let mut env = environment().map_err(syntax)?;
        for (name, text) in &sources {
            env.add_template_owned(name.clone(), source::with_generation_as(text, "__plain")).map_err(syntax)?;
            env.add_template_owned(marked_name(name), source::with_generation_as(text, "__mark")).map_err(syntax)?;
        }
        let template = ChatTemplate { env, origin, sources, special_tokens };
        Ok(template.with_clock(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())))
    }

    /// Has `strftime_now` read this clock (seconds since 1970, UTC) instead of the system's, so that prompts can be repeated.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Fn() -> u64 + Send + Sync + 'static) -> ChatTemplate {
        self.env.add_function("strftime_now", move |format: &str| strftime::strftime(format, clock()));
        self
    }

    /// The text of these messages. `extra` are further variables of the template: `tools`, `documents`, `enable_thinking`, ...
    pub fn render(&self, messages: &[Value], add_generation_prompt: bool, extra: &Map<String, Value>) -> Result<String, TemplateError> {
        let name = self.name_for(extra);
        self.render_named(name, messages, add_generation_prompt, extra)
    }

    /// The text of these messages, and the bytes of it that stand in `{% generation %}` blocks: what the assistant said. A template
    /// without such blocks has no spans.
    pub fn render_with_generation_spans(
        &self,
        messages: &[Value],
        add_generation_prompt: bool,
        extra: &Map<String, Value>,
    ) -> Result<(String, Vec<Range<usize>>), TemplateError> {
        let name = self.name_for(extra);
        let plain = self.render_named(name, messages, add_generation_prompt, extra)?;
        let marked = self.render_named(&marked_name(name), messages, add_generation_prompt, extra)?;
        let mut text = String::with_capacity(plain.len());
        let mut spans: Vec<Range<usize>> = Vec::new();
        for c in marked.chars() {
            match (MARKS.iter().position(|&mark| mark == c), spans.last_mut()) {
                (Some(0), _) => spans.push(text.len()..text.len()),
                (Some(_), Some(open)) => open.end = text.len(),
                (Some(_), None) => return Err(TemplateError::MarksInUse),
                (None, _) => text.push(c),
            }
        }
        if text == plain { Ok((text, spans)) } else { Err(TemplateError::MarksInUse) }
    }

    /// The texts of the templates.
    pub fn sources(&self) -> impl Iterator<Item = &str> {
        self.sources.iter().map(|(_, text)| text.as_str())
    }

    /// Folders with several templates have one for conversations with tools.
    fn name_for(&self, extra: &Map<String, Value>) -> &str {
        let has_tools = extra.get("tools").is_some_and(|tools| !tools.is_null());
        let with_tools = self.sources.iter().find(|(name, _)| has_tools && name == "tool_use");
        with_tools.map_or("default", |(name, _)| name.as_str())
    }

    fn render_named(
        &self,
        name: &str,
        messages: &[Value],
        add_generation_prompt: bool,
        extra: &Map<String, Value>,
    ) -> Result<String, TemplateError> {
        let mut variables: Map<String, Value> = Map::new();
        for (field, text) in self.special_tokens.named() {
            variables.insert(field.into(), text.into());
        }
        if !self.special_tokens.additional().is_empty() {
            variables.insert("additional_special_tokens".into(), self.special_tokens.additional().into());
        }
        // Templates ask `tools is none`, not only whether they are defined.
        variables.insert("tools".into(), Value::Null);
        variables.insert("documents".into(), Value::Null);
        variables.extend(extra.iter().map(|(name, value)| (name.clone(), value.clone())));
        variables.insert("messages".into(), messages.into());
        variables.insert("add_generation_prompt".into(), add_generation_prompt.into());
        let rendered = self.env.get_template(name).and_then(|template| template.render(minijinja::Value::from(Serde(&variables))));
        rendered.map_err(|error| match python::raised(&error) {
            Some(message) => TemplateError::Raised(message),
            None => TemplateError::Render { origin: self.origin.clone(), line: error.line().unwrap_or(1), detail: detail(&error) },
        })
    }
}

/// For each token, whether it stands for any byte of a generation block. `offsets` are the tokens' bytes, as from
/// [`encode_with_offsets`](super::tokenizer::Tokenizer::encode_with_offsets).
pub fn assistant_mask(offsets: &[Range<usize>], spans: &[Range<usize>]) -> Vec<bool> {
    offsets.iter().map(|token| spans.iter().any(|span| token.start < span.end && span.start < token.end)).collect()
}

/// The templates in the field `chat_template`.
fn named_templates(field: &Value) -> Result<Vec<(String, String)>, String> {
    let templates: Vec<(String, String)> = match field {
        Value::String(text) => return Ok(vec![("default".into(), text.clone())]),
        Value::Array(list) => list
            .iter()
            .map(|item| Some((item.get("name")?.as_str()?.to_owned(), item.get("template")?.as_str()?.to_owned())))
            .collect::<Option<_>>()
            .ok_or("one entry of the list lacks name or template")?,
        Value::Object(named) => named
            .iter()
            .map(|(name, text)| Some((name.clone(), text.as_str()?.to_owned())))
            .collect::<Option<_>>()
            .ok_or("one of the named templates is not a string")?,
        _ => return Err("is neither a string nor a list".into()),
    };
    if templates.iter().any(|(name, _)| name == "default") {
        return Ok(templates);
    }
    let names: Vec<&str> = templates.iter().map(|(name, _)| name.as_str()).collect();
    Err(format!("has templates named [{}] but none named default", names.join(", ")))
}

/// The template engine, set up as transformers sets up Jinja.
fn environment() -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(false).build()?);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_unknown_method_callback(python::method);
    env.set_formatter(python::print);
    python::register(&mut env);
    env.add_filter("tojson", json::tojson);
    env.add_filter("fromjson", json::fromjson);
    env.add_filter("__plain", |body: minijinja::Value| body);
    env.add_filter("__mark", |body: minijinja::Value| format!("{}{body}{}", MARKS[0], MARKS[1]));
    Ok(env)
}

/// The name of the copy of a template that marks generation blocks.
fn marked_name(name: &str) -> String {
    format!("{name} with marks")
}

/// What went wrong, without the place.
fn detail(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

/// An error of a function or filter of ours.
fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}
