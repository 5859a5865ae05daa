//! Flask under gunicorn: a typical application with one worker, which serves one request at a time.

use std::path::{Path, PathBuf};

use crate::address::Address;
use crate::context::Context;
use crate::error::Error;
use crate::process::{self, Launch};
use crate::target::prepared::{Prepared, Target, unsupported};
use crate::version;

/// Starts the application on the target's cores.
pub fn start(context: &Context, listen: &Address) -> Result<Target, Error> {
    prepare(context, listen)?.start(context, listen)
}

/// Writes the application and builds its command, pinned to the target's cores.
pub fn prepare(context: &Context, listen: &Address) -> Result<Prepared, Error> {
    let program = find()?;
    let bind = match listen {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(path) => format!("unix:{}", path.display()),
        other => return Err(unsupported("gunicorn", &other.to_string())),
    };
    let directory = context.path("application");
    std::fs::create_dir_all(&directory)
        .and_then(|()| std::fs::write(directory.join("server.py"), APPLICATION))
        .map_err(|source| Error::Io { doing: format!("write {}", directory.display()), source })?;
    let arguments = ["--bind", &bind, "--no-control-socket", "server:app"];
    let configuration = format!("# server.py\n{APPLICATION}\n# gunicorn {}\n", arguments.join(" "));
    let launch = Launch::new("gunicorn", program, &context.cores.target).args(arguments).directory(directory);
    Ok(Prepared { launch, configuration })
}

/// Finds gunicorn in the environment of `make setup` or in the distribution.
pub fn find() -> Result<PathBuf, Error> {
    let ours = sys::directories::cache().map(|cache| cache.join("venv-gunicorn/bin/gunicorn"));
    match ours.ok().filter(|program| program.is_file()) {
        Some(program) => Ok(program),
        None => process::find("gunicorn", "gunicorn python3-flask"),
    }
}

/// Returns the versions of gunicorn, Flask and the Python that runs them.
pub fn versions(gunicorn: &Path) -> Vec<(String, String)> {
    let python = gunicorn.with_file_name("python3");
    let names = ["gunicorn", "flask"];
    let ask = |name: &str| format!("from importlib.metadata import version; print(version('{name}'))");
    let versions = names.iter().filter_map(|name| Some((*name, version::of(&python, &["-c", &ask(name)])?)));
    let python = version::of(&python, &["--version"]).map(|version| ("python of gunicorn", version));
    versions.chain(python).map(|(name, version)| (name.to_owned(), version)).collect()
}

const APPLICATION: &str = "\
from flask import Flask
app = Flask(__name__)

@app.route(\"/\")
def hello():
    return \"Hello there!\"
";
