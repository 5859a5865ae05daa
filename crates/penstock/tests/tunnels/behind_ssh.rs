//! Backends behind SSH hosts: served like any other, and down with their tunnel.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testing::peers::counting_backend;
use testing::server::Setup;
use testing::tunnel::Place;
use testing::{Client, Server, eventually, secs};

fn serve(place: &Place, backends: &str, health: &str) -> Server {
    let config = format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\npool = \"app\"\n\
         [pool.app]\nbackends = [{backends}]\nhealth = {health}\n"
    );
    let setup = Setup::new(&config).env("HOME", &place.shown("home"));
    setup.env("RUNTIME_DIRECTORY", &place.shown("run")).env("XDG_STATE_HOME", &place.shown("state")).start()
}

fn wait_for(server: &Server, backend: &str, state: &str) {
    eventually(&format!("{backend} {state}"), secs(20), || (server.health(backend) == state).then_some(()));
}

const QUICK: &str = "{ http = \"/healthz\", interval = \"1s\", timeout = \"1s\", rise = 1, fall = 2 }";

#[test]
fn a_backend_behind_ssh_serves_and_is_down_while_its_tunnel_is() {
    let place = Place::new();
    let app = counting_backend(&place.path("log"), "app", 0);
    let name = format!("ssh:far/{}", app.address);
    let server = serve(&place, &format!("\"{name}\""), QUICK);
    wait_for(&server, &name, "up");
    assert_eq!(server.client("web").get("/", &[]).status, 200);
    // New connections cannot be made, and those there are broken.
    let sshd = Pid::from_raw(place.sshd.pid().cast_signed());
    kill(sshd, Signal::SIGSTOP).unwrap();
    let sessions = fs::read_to_string(format!("/proc/{0}/task/{0}/children", place.sshd.pid())).unwrap();
    for session in sessions.split_whitespace() {
        kill(Pid::from_raw(session.parse().unwrap()), Signal::SIGKILL).unwrap();
    }
    wait_for(&server, &name, "down");
    // A check that was under way may have ended it before the loss of the tunnel was seen.
    eventually("the cause", secs(20), || {
        let status = String::from_utf8(server.ctl(&["status"]).stdout).unwrap();
        status.contains("no SSH tunnel").then_some(())
    });
    assert_eq!(Client::connect(&server.address("web")).get("/", &[]).status, 503);
    kill(sshd, Signal::SIGCONT).unwrap();
    wait_for(&server, &name, "up");
    assert_eq!(Client::connect(&server.address("web")).get("/", &[]).status, 200);
}

#[test]
fn a_host_that_is_not_who_it_was_takes_its_backend_down_with_that_cause_and_the_others_serve() {
    let place = Place::new();
    let app = counting_backend(&place.path("log"), "app", 0);
    let other = fs::read_to_string(place.sshd.directory.path().join("client.pub")).unwrap();
    place.pin(&other);
    let name = format!("ssh:far/{}", app.address);
    let server = serve(&place, &format!("\"{name}\", \"{}\"", app.address), QUICK);
    wait_for(&server, &app.address, "up");
    eventually("the cause", secs(20), || {
        let status = String::from_utf8(server.ctl(&["status"]).stdout).unwrap();
        (status.contains("no SSH tunnel") && status.contains("is pinned")).then_some(())
    });
    assert_eq!(server.health(&name), "down");
    assert_eq!(server.client("web").get("/", &[]).status, 200);
}

#[test]
fn a_tcp_check_behind_ssh_sees_whether_the_host_can_connect() {
    let place = Place::new();
    let unused = format!("127.0.0.1:{}", testing::port::free());
    let name = format!("ssh:far/{unused}");
    let check = "{ tcp = true, interval = \"500ms\", rise = 1, fall = 1 }";
    let server = serve(&place, &format!("\"{name}\""), check);
    // First its tunnel is opened, then the check fails.
    eventually("the verdict", secs(20), || {
        let verdicts = server.backend(&name).to_string();
        (verdicts.contains("connect failed") && verdicts.contains("could not connect to")).then_some(())
    });
    assert_eq!(server.health(&name), "down");
}

#[test]
fn a_request_that_may_not_be_repeated_goes_to_the_next_backend_when_an_application_behind_ssh_is_down() {
    let place = Place::new();
    // At its port no other test comes to listen later.
    let gone = counting_backend(&place.path("log"), "gone", testing::port::free());
    let stays = counting_backend(&place.path("log"), "stays", 0);
    let names = [format!("ssh:far/{}", gone.address), format!("ssh:far/{}", stays.address)];
    let rare = "{ http = \"/healthz\", interval = \"60s\", timeout = \"20s\", rise = 1, fall = 1 }";
    let server = serve(&place, &format!("\"{}\", \"{}\"", names[0], names[1]), rare);
    names.iter().for_each(|name| wait_for(&server, name, "up"));
    drop(gone);
    for turn in 0..6 {
        let answer = server.client("web").request("POST", "/", &[], b"once");
        assert_eq!(answer.status, 200, "request {turn}: {}", answer.text());
    }
}

#[test]
fn a_tunnel_whose_socket_cannot_be_made_is_tried_again() {
    let place = Place::new();
    let app = counting_backend(&place.path("log"), "app", 0);
    let name = format!("ssh:far/{}", app.address);
    fs::remove_dir(place.path("run")).unwrap();
    let server = serve(&place, &format!("\"{name}\""), QUICK);
    eventually("the cause", secs(20), || {
        let status = String::from_utf8(server.ctl(&["status"]).stdout).unwrap();
        status.contains("cannot make a directory for its socket").then_some(())
    });
    fs::create_dir(place.path("run")).unwrap();
    wait_for(&server, &name, "up");
}
