//! All processes and files of a demo.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use text::shell;
use text::table::Table;
use text::terminal::plain;

use crate::authority;
use crate::backend::{self, Backend};
use crate::server::Server;

/// Ports on 127.0.0.1; 0 takes a free port.
#[derive(Debug, Clone, Copy)]
pub struct Ports {
    pub http: u16,
    pub https: u16,
}

pub struct Stage {
    pub backends: Vec<Backend>,
    server: Server,
    files: Files,
    /// Address of the HTTP listener.
    pub http: SocketAddr,
    https: SocketAddr,
    admin: String,
}

/// Files that users may want to read.
struct Files {
    configuration: PathBuf,
    authority: PathBuf,
    control: PathBuf,
    access_log: PathBuf,
    log: PathBuf,
}

impl Stage {
    /// Starts all parts, with files in `directory`. `program` is the path of this program.
    ///
    /// # Errors
    /// A backend or the front door cannot be started, or a file cannot be written.
    pub fn build(program: &Path, ports: Ports, directory: &Path) -> anyhow::Result<Self> {
        let backends = backend::start(directory).context("cannot start the backends")?;
        let certificates = authority::create(directory).context("cannot make certificates")?;
        let files = Files {
            configuration: directory.join("penstock.toml"),
            authority: certificates.authority,
            control: directory.join("control.sock"),
            access_log: directory.join("access.log"),
            log: directory.join("penstock.log"),
        };
        let text = configuration(ports, &files, &certificates.certificates, &backends)?;
        fs::write(&files.configuration, text)
            .with_context(|| format!("cannot write {}", files.configuration.display()))?;
        let server = Server::start(program, &files.configuration, &files.log)?;
        let http = server.bound.listener("web")?;
        let https = server.bound.listener("secure")?;
        let admin =
            server.bound.admin.clone().context("the front door did not say where its admin listener is")?;
        Ok(Stage { backends, server, files, http, https, admin })
    }

    /// Commands for the user to try, each a complete line. `program` is this program as a word of the shell.
    #[must_use]
    pub fn introduction(&self, program: &str) -> String {
        let Stage { http, admin, .. } = self;
        let https = self.https.port();
        let first = &self.backends[0].address;
        let mut backends = Table::indented("    ");
        self.backends.iter().for_each(|backend| backends.row([backend.name, &backend.address]));
        let backends = backends.render();
        let Files { configuration, authority, control, access_log, log } = &self.files;
        let [configuration, authority, control, access_log, log] =
            [configuration, authority, control, access_log, log].map(|path| shell::path(path));
        format!(
            "\
Penstock demo: HTTP and HTTPS in front of four backends, two on TCP ports and two on Unix sockets.

  HTTP           http://{http}/
  HTTPS          https://localhost:{https}/
  configuration  {configuration}
  server log     {log}
  access log     {access_log}
  backends, by the names that they answer with
{backends}
Try in another terminal:

  # one request over HTTP, one over HTTPS
  curl http://{http}/
  curl --cacert {authority} https://localhost:{https}/

  # all four backends answer
  curl -s 'http://{http}/?[1-40]' | sort | uniq -c
  curl -s --cacert {authority} 'https://localhost:{https}/?[1-40]' | sort | uniq -c

  # what a backend is told about the client; a slow answer
  curl http://{http}/inspect
  curl 'http://{http}/slow?ms=300'

  # what the server is doing; take a backend out of service and back
  {program} ctl --socket {control} status
  {program} ctl --socket {control} drain {POOL} {first}
  {program} ctl --socket {control} ready {POOL} {first}

  # numbers for Prometheus; the file that is running, a good one to start from
  curl -s http://{admin}/metrics
  {program} check {configuration}

Ctrl-C ends the demo and removes its files.

demo: ready
"
        )
    }

    #[must_use]
    pub fn control(&self) -> &Path {
        &self.files.control
    }

    #[must_use]
    pub fn is_running(&self) -> bool {
        self.server.is_running()
    }

    /// The last lines of the front door's log.
    #[must_use]
    pub fn last_lines(&self) -> String {
        last_lines(&self.files.log)
    }

    pub fn stop(self) {
        self.server.stop();
    }
}

/// The configuration of the demo, written so that users can copy it.
fn configuration(
    ports: Ports,
    files: &Files,
    certificates: &Path,
    backends: &[Backend],
) -> anyhow::Result<String> {
    let Ports { http, https } = ports;
    let backends: Vec<_> = backends
        .iter()
        .map(|backend| format!("    {}, # {}\n", string(&backend.address), backend.name))
        .collect();
    let backends = backends.concat();
    let [access_log, control, certificates] =
        [files.access_log.as_path(), &files.control, certificates].map(path_string);
    let (access_log, control, certificates) = (access_log?, control?, certificates?);
    Ok(format!(
        "\
# The configuration that `penstock demo` runs: a file to start from.
# `penstock check FILE` finds mistakes in it, `penstock serve --config FILE` runs it.

[process]
drain-timeout = \"2s\" # how long open connections may go on when the server is stopped

[access-log]
target = {access_log}

[control]
socket = {control} # for `penstock ctl`

[admin]
bind = \"127.0.0.1:0\" # metrics; port 0 takes a free one

[listener.web]
bind = \"127.0.0.1:{http}\" # on a server: \":80\"
protocol = \"http\"
pool = \"{POOL}\"

[listener.secure]
bind = \"127.0.0.1:{https}\" # on a server: \":443\"
protocol = \"http\"
pool = \"{POOL}\"
tls = {{ certificates = {certificates} }}
hsts = \"off\" # a browser would remember it for every port of localhost; leave this line out on a server

[pool.{POOL}]
backends = [
{backends}]
health = {{ http = \"/healthz\", interval = \"1s\", timeout = \"500ms\", rise = 2, fall = 2 }}
"
    ))
}

/// Quotes a TOML string. JSON escapes are valid in TOML.
fn string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn path_string(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().filter(|text| !text.contains("${") && !text.contains(char::is_control));
    let text = text.with_context(|| {
        format!("{} cannot be written into a configuration; set TMPDIR to a plain path", path.display())
    })?;
    Ok(string(text))
}

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..]
        .iter()
        .map(|line| format!("  {}", plain(line)))
        .collect::<Vec<_>>()
        .join("\n")
}

const POOL: &str = "hello";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_of_the_demo_is_valid_and_has_no_warnings() {
        let directory = tempfile::tempdir().unwrap();
        let backends = backend::start(directory.path()).unwrap();
        let file = |name: &str| directory.path().join(name);
        let files = Files {
            configuration: file("c"),
            authority: file("ca"),
            control: file("s"),
            access_log: file("a \"quoted\" log"),
            log: file("l"),
        };
        let ports = Ports { http: 0, https: 8443 };
        let text = configuration(ports, &files, &file("certificates"), &backends).unwrap();
        let source = config::Source { name: "demo".into(), text };
        let loaded = config::load(&source, &Default::default()).unwrap_or_else(|faults| panic!("{faults}"));
        assert!(loaded.warnings.is_empty(), "{}", loaded.warnings);
        assert_eq!(loaded.config.pools[0].backends.len(), 4);
    }
}
