//! Several servers on one machine: which of them a command is for.

use std::process::Command;

use testing::server::binary;
use testing::{Scripted, Server, secs};

fn server(backend: &Scripted) -> Server {
    Server::start(&format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n[pool.app]\nbackends = [\"{}\"]\n",
        backend.address
    ))
}

#[test]
fn a_file_of_the_command_line_is_before_the_variable_and_serve_says_that_the_path_is_from_it() {
    let backend = Scripted::answering("x");
    let (mut one, mut other) = (server(&backend), server(&backend));
    let run = |command: &str, words: &[&str]| {
        let file = other.dir.path().join("penstock.toml");
        let mut told = Command::new(binary());
        told.args([command, "--config", file.to_str().unwrap()]).args(words);
        told.env("PENSTOCK_CONTROL_SOCKET", one.control_socket()).output().unwrap()
    };
    let said = run("ctl", &["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(status["pid"], other.pid().as_raw(), "{said:?}");
    // The address is that of a server that runs.
    let refused = run("serve", &[]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        said.contains("environment PENSTOCK_CONTROL_SOCKET: control.socket: listen on control socket"),
        "{said}"
    );
    let advice = "; without PENSTOCK_CONTROL_SOCKET the path is that of this server's own configuration";
    assert!(said.contains(advice), "{said}");
    assert!(run("ctl", &["stop"]).status.success());
    other.wait_end(secs(20));
    one.assert_running();
}
