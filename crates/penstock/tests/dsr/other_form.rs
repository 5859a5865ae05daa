//! A start that finds maps of another form, as of an earlier process on fewer processors.

use std::fs;

use nix::sys::signal::Signal;
use testing::tools::{self, Root};
use testing::{Server, eventually, secs};

use super::bpf_refused::{Refused, starter};
use super::network::{Network, SERVERS, VIP, config};
use super::paths::stop;
use super::survival::link;

#[test]
#[cfg(target_arch = "x86_64")]
fn a_program_whose_maps_have_another_form_goes_on_until_its_successor_is_in_its_place() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let text = config(&format!("\"{VIP}:80\""), "data-path = \"tc\"", "health = \"off\"");
    // A filter of system calls takes new privileges away: the process stays root.
    let text = text.replace("user = \"nobody\"\n", "");
    let serves = || network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(());
    let before = |server: &Server| {
        let said = server.said(&["events"]);
        said.contains("in the place of the program that") && !said.contains("whose flows are forgotten")
    };
    let crash = |mut server: Server| {
        server.signal(Signal::SIGKILL);
        server.wait_end(secs(10));
    };
    let server = network.setup_as("one.toml", &text).start();
    eventually("it serves", secs(20), serves);
    crash(server);
    let names = link(&network, "tc").parent().unwrap().to_owned();
    // One that is much smaller.
    fs::rename(names.join("service"), names.join("tallies")).unwrap();
    let wrapped = text.replace("@DIR@", network.directory.path().to_str().unwrap());
    let space = network.space();
    let output = testing::server::Setup::new(&wrapped)
        .through(["nsenter", &space, "python3", "-c", &starter(Refused::LinkUpdate)])
        .output();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("CAP_BPF"), "{said}");
    assert!((0..20).all(|_| ["2", "3"].contains(&&*network.visit(VIP))), "the program goes on");
    // A start that may replace it makes its own maps, which have the names of those afterwards.
    let server = network.setup_as("one.toml", &text).start();
    let said = server.said(&["events"]);
    assert!(said.contains("whose flows are forgotten: its maps have another form"), "{said}");
    eventually("it serves", secs(20), serves);
    assert!((0..20).all(|_| ["2", "3"].contains(&&*network.visit(VIP))));
    let mut found: Vec<_> =
        fs::read_dir(&names).unwrap().map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
    found.sort();
    assert!(
        found.contains(&"service".to_owned()) && !found.iter().any(|name| name.contains("anew")),
        "{found:?}"
    );
    crash(server);
    let server = network.setup_as("one.toml", &text).start();
    eventually("its flows are taken over", secs(20), || before(&server).then_some(()));
    (0..20).for_each(|_| assert!(["2", "3"].contains(&&*network.visit(VIP))));
    // The next network namespace may have the number of this one, and would find what is left.
    stop(server);
    assert!(!link(&network, "tc").exists());
}
