//! `adaroll report`: the page about a run.

use std::path::PathBuf;

use clap::Args;

use crate::trainer::report;

/// Draw a training run: one HTML page with its plots, tables and configuration, that needs no network.
///
/// Reads metrics.jsonl, timings.jsonl and config.toml of the run's folder; the run may still be going. Prints the path of the page.
///
/// Examples:
///   adaroll report runs/gsm8k
///   adaroll report runs/gsm8k -o /tmp/gsm8k.html
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment)]
pub struct ReportArgs {
    /// The run's folder (run.dir).
    #[arg(value_name = "RUN_DIR")]
    pub run_dir: PathBuf,
    /// The page [default: report.html in the run's folder].
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

impl ReportArgs {
    /// Writes the page and gives its path.
    pub fn run(&self) -> Result<String, report::ReportError> {
        let page = self.out.clone().unwrap_or_else(|| self.run_dir.join("report.html"));
        report::write(&self.run_dir, &page)?;
        Ok(page.display().to_string())
    }
}
