//! Checks the language and the form of the files of this repository.
//!
//! ```text
//! cargo run -p azekura-tidy                prints violations as FILE:LINE: CHECK: TEXT; exit code 1 if any
//! cargo run -p azekura-tidy -- --counts    prints the number of violations of each check
//! cargo run -p azekura-tidy -- --update    lowers the counts in tools/tidy/debt.txt to the present ones
//! cargo run -p azekura-tidy -- --sizes     prints the table of sizes of docs/decisions/047-sizes.md
//! cargo run -p azekura-tidy -- --language  prints two shares per crate and the files that raise them
//! ```
//!
//! | check | violation |
//! |---|---|
//! | `who` | *who, whom, whose, whoever* in a comment, document or script |
//! | `opening` | a doc comment that begins with *Who, What, Where, When, How, Whether, Which, Why, It* |
//! | `word` | a word or phrase of `tools/tidy/words.txt` in a comment or document |
//! | `sentence` | a sentence that begins with *What, Whatever, Who, Whoever, Whichever* |
//! | `length` | a line over 110 characters in a text file |
//! | `ordering` | `Relaxed`, `Acquire`, … or `SeqCst` in shipped code without a comment nearby |
//! | `link` | a relative link of a document to a file or heading that does not exist |
//! | `size` | a source file over 600 lines |
//! | `package` | a published crate without a key that registries show, or with a version of its own |
//!
//! Two files contain exceptions. `tools/tidy/exceptions.txt` has lasting ones, each with a reason.
//! `tools/tidy/debt.txt` has the number of violations that are allowed in older files; it may only decrease.

#![forbid(unsafe_code)]

mod allowed;
mod checks;
mod files;
mod language;
mod links;
mod manifests;
mod prose;
mod sizes;

use std::path::Path;
use std::process::ExitCode;

use allowed::{Debt, Exceptions};

/// One violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Violation {
    /// Path from the root of the repository.
    file: String,
    /// Line number, from 1.
    line: usize,
    /// Name of the check, as in the table of this file's documentation.
    check: &'static str,
    /// The offending text.
    text: String,
}

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let option = std::env::args().nth(1).unwrap_or_default();
    match run(&root, &option) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("tidy: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs all checks; returns `true` if the tree passes.
fn run(root: &Path, option: &str) -> Result<bool, String> {
    let words = allowed::words(&read(&root.join("tools/tidy/words.txt"))?)?;
    let exceptions = Exceptions::parse(&read(&root.join("tools/tidy/exceptions.txt"))?)?;
    let debt_file = root.join("tools/tidy/debt.txt");
    let debt = Debt::parse(&read(&debt_file)?)?;
    let tree = files::tree(root)?;
    let mut found = Vec::new();
    for file in &tree {
        found.extend(checks::of_file(file, &words));
        found.extend(links::of_file(file, root));
        found.extend(manifests::of_file(file));
    }
    found.retain(|violation| !exceptions.covers(violation));
    let present = Debt::of(&found);
    match option {
        "--counts" => {
            print!("{}", present.totals());
            Ok(true)
        }
        "--update" => {
            let lowered = if debt.is_empty() { present } else { debt.lowered_to(&present) };
            std::fs::write(&debt_file, lowered.text()).map_err(|error| format!("debt.txt: {error}"))?;
            Ok(true)
        }
        "--sizes" => {
            print!("{}", sizes::table(root, &tree)?);
            Ok(true)
        }
        "--language" => {
            print!("{}", language::table(&tree));
            Ok(true)
        }
        "" => {
            let new = debt.exceeded_by(&found);
            for violation in &new {
                let Violation { file, line, check, text } = violation;
                println!("{file}:{line}: {check}: {}", text.trim());
            }
            println!("tidy: {} files, {} violations above the allowed counts", tree.len(), new.len());
            Ok(new.is_empty())
        }
        other => {
            Err(format!("{other} is not an option; use --counts, --update, --sizes, --language, or none"))
        }
    }
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}
