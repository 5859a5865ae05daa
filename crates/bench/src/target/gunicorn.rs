//! Flask under gunicorn: an application as people really have one, with one worker that serves one request after the
//! other.

use std::path::{Path, PathBuf};

use crate::address::Address;
use crate::context::Context;
use crate::error::Error;
use crate::machine;
use crate::process::{self, Launch, Process};
use crate::target::{Prepared, Target};

/// Starts the application on the target's cores.
pub fn start(context: &Context, listen: &Address) -> Result<Target, Error> {
    let Prepared { launch, configuration } = prepare(context, listen)?;
    let mut process = Process::start(context, &launch)?;
    process.wait_listening(context, listen)?;
    Ok(Target { process, configuration, address: listen.clone() })
}

/// Writes the application and says how it is started on the target's cores.
pub fn prepare(context: &Context, listen: &Address) -> Result<Prepared, Error> {
    let program = find()?;
    let bind = match listen {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(path) => format!("unix:{}", path.display()),
        other => return Err(super::unsupported("gunicorn", &other.to_string())),
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

/// The environment that `make setup` makes, or what the distribution has.
pub fn find() -> Result<PathBuf, Error> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let ours = cache.or_else(home).map(|cache| cache.join("penstock/venv-gunicorn/bin/gunicorn"));
    match ours.filter(|program| program.is_file()) {
        Some(program) => Ok(program),
        None => process::find("gunicorn", "gunicorn python3-flask"),
    }
}

/// Versions of what makes the application, by name: gunicorn, Flask and the Python that runs them.
pub fn versions(gunicorn: &Path) -> Vec<(String, String)> {
    let python = gunicorn.with_file_name("python3");
    let names = ["gunicorn", "flask"];
    let ask = |name: &str| format!("from importlib.metadata import version; print(version('{name}'))");
    let versions =
        names.iter().filter_map(|name| Some((*name, machine::version(&python, &["-c", &ask(name)])?)));
    let python = machine::version(&python, &["--version"]).map(|version| ("python of gunicorn", version));
    versions.chain(python).map(|(name, version)| (name.to_owned(), version)).collect()
}

const APPLICATION: &str = "\
from flask import Flask
app = Flask(__name__)

@app.route(\"/\")
def hello():
    return \"Hello there!\"
";
