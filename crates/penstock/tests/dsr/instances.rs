//! What a start does with programs that earlier ones have left: of its own instance, and of others on the same machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::sys::signal::Signal;
use testing::tools::{self, Root};
use testing::{binary, eventually, secs};

use super::beside::detach;
use super::network::{BALANCER, CLIENT, Network, Running, SERVERS, VIP, are_same, config};
use super::paths::{ends, stop};
use super::survival::{link, program};

const NO_CHECKS: &str = "health = \"off\"";

fn bind() -> String {
    format!("\"{VIP}:80\"")
}

fn serves(network: &Network) {
    eventually("it serves", secs(20), || {
        network.curl(&["-m", "1", &format!("http://{VIP}/")]).status.success().then_some(())
    });
}

/// A configuration that cannot start: it names an address that this machine does not have.
fn failing(config: &str) -> String {
    format!("[admin]\nbind = \"192.0.2.77:9900\"\n{config}")
}

#[track_caller]
fn fails(network: &Network, file: &str, config: &str) {
    let output = network.setup_as(file, &failing(config)).output();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("admin.bind"), "{text}");
}

#[test]
fn the_program_of_another_instance_stays_and_is_told_with_the_command_that_ends_it() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let kept = config(&bind(), "at-stop = \"keep\"", NO_CHECKS);
    let server = network.setup_as("one.toml", &kept).start();
    serves(&network);
    stop(server);
    let (link, (first, _)) = (link(&network, "tc"), program(&link(&network, "tc")));
    let other = kept
        .replace("listener.web", "listener.other")
        .replace(":80\"", ":8080\"")
        .replace("\"keep\"", "\"detach\"");
    let server = network.setup_as("two.toml", &other).start();
    let told = eventually("it is told", secs(20), || {
        let events = server.said(&["events"]);
        events.contains("has left a program that forwards packets").then_some(events)
    });
    let directory = link.parent().unwrap().display().to_string();
    assert!(told.contains("another penstock (configuration ") && told.contains("/one.toml at "), "{told}");
    assert!(told.contains(&format!("`penstock ctl dsr detach {directory}` as root")), "{told}");
    assert_eq!(program(&link).0, first, "it goes on");
    serves(&network);
    // Nor is it lost when the other one ends.
    stop(server);
    assert_eq!(program(&link).0, first);
    let server = network.setup_as("one.toml", &kept.replace("listener.web", "listener.site")).start();
    eventually("its own instance takes it away", secs(20), || (!link.exists()).then_some(()));
    serves(&network);
    stop(server);
    stop(
        network
            .setup_as(
                "one.toml",
                &kept.replace("listener.web", "listener.site").replace("\"keep\"", "\"detach\""),
            )
            .start(),
    );
    ends(&network);
}

/// What `penstock doctor dsr` says before a start with this file.
fn doctor(network: &Network, file: &str, config: &str) -> String {
    let path = network.directory.path().join(file);
    fs::write(&path, config.replace("@DIR@", "/nowhere")).unwrap();
    let space = network.space();
    let words = [&*space, binary(), "doctor", "dsr", "--config", path.to_str().unwrap()];
    String::from_utf8(tools::run("nsenter", &words, secs(60)).stdout).unwrap()
}

#[test]
fn a_start_whose_packets_the_program_of_another_instance_takes_is_refused_with_the_command_that_ends_it() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let of = |name: &str, port: &str, more: &str| {
        let text = config(&format!("\"{VIP}:{port}\""), more, NO_CHECKS);
        let text = if port == "8080" { text.replace(":80\"", ":8080\"") } else { text };
        text.replace("listener.web", &format!("listener.{name}"))
    };
    let mut server = network.setup_as("one.toml", &of("web", "80", "data-path = \"tc\"")).start();
    serves(&network);
    server.signal(Signal::SIGKILL);
    server.wait_end(secs(10));
    let directory = link(&network, "tc").parent().unwrap().display().to_string();
    let command = format!("penstock ctl dsr detach {directory}");
    for config in [
        of("other", "80", ""),
        of("other", "80", "data-path = \"af_packet\""),
        of("other", "*", "data-path = \"af_packet\""),
    ] {
        let output = network.setup_as("two.toml", &config).output();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(&command), "{config}: {text}");
        assert!(text.contains("listener.other: ") && text.contains("/one.toml at "), "{text}");
        let said = doctor(&network, "two.toml", &config);
        assert!(said.contains(&command) && said.contains("/one.toml at "), "{said}");
        assert!(said.contains("fault    a start is refused"), "{said}");
    }
    // Without a right to bpf(2) the name says it.
    let (config, space) = (of("other", "80", "data-path = \"af_packet\""), network.space());
    let less = ["nsenter", &space, "setpriv", "--bounding-set", "-bpf,-perfmon,-net_admin,-sys_admin"];
    let output = network.setup_as("two.toml", &config).through(less).output();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains(&command), "{text}");
    serves(&network);
    // What is for another port or transport goes its own way, and an instance takes its own program over.
    for config in [of("other", "8080", ""), of("other", "80", "transport = \"udp\"")] {
        let said = doctor(&network, "two.toml", &config);
        assert!(!said.contains("a start is refused"), "{said}");
        stop(network.setup_as("two.toml", &config).start());
    }
    for name in ["web", "site"] {
        let said = doctor(&network, "one.toml", &of(name, "80", ""));
        assert!(!said.contains("a start is refused"), "{said}");
    }
    assert!(detach(&network, &[&directory]).0);
    let config = of("other", "80", "");
    assert!(!doctor(&network, "two.toml", &config).contains("a start is refused"));
    let server = network.setup_as("two.toml", &config).start();
    serves(&network);
    stop(server);
}

#[test]
fn a_start_that_fails_leaves_the_programs_that_it_would_have_taken_away() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    for (path, next) in
        [("tc", "tc"), ("xdp-generic", "xdp-generic"), ("xdp-generic", "xdp"), ("tc", "af_packet")]
    {
        let of = |path: &str| config(&bind(), &format!("data-path = \"{path}\""), NO_CHECKS);
        let mut server = network.setup_as("one.toml", &of(path)).start();
        serves(&network);
        server.signal(Signal::SIGKILL);
        server.wait_end(secs(10));
        let link = link(&network, path);
        let (first, _) = program(&link);
        let same = of(next);
        for config in
            [&same.replace("listener.web", "listener.site"), &same.replace(":80\"", ":8080\""), &same]
        {
            fails(&network, "one.toml", config);
            assert_eq!(program(&link).0, first, "{path}, then {next}: {config}");
            (0..10).for_each(|_| assert!(["2", "3"].contains(&&*network.visit(VIP))));
        }
        let mine = directories(&network);
        assert_eq!(mine, [link.parent().unwrap()], "the names of failed starts are removed");
        let shown = network.run(BALANCER, &["ip", "link", "show", "eth0"]);
        assert_eq!(shown.contains("xdpgeneric"), path == "xdp-generic", "{shown}");
        stop(network.setup_as("one.toml", &of("tc")).start());
        ends(&network);
    }
}

/// Directories of the balancer's network that have names.
fn directories(network: &Network) -> Vec<PathBuf> {
    let own = link(network, "tc");
    let own = own.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    let prefix = own.split_once("-eth0").unwrap().0.to_owned() + "-";
    // The last process that goes removes it.
    let Ok(all) = fs::read_dir("/sys/fs/bpf/penstock") else { return Vec::new() };
    let all = all.map(|entry| entry.unwrap().path());
    let is_full = |path: &PathBuf| fs::read_dir(path).is_ok_and(|mut all| all.next().is_some());
    let of = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&prefix);
    all.filter(|path| of(path) && is_full(path)).collect()
}

/// Number of the map of this name that the program has.
fn map(directory: &Path, name: &str) -> u64 {
    let output = tools::run(
        "bpftool",
        &["-j", "map", "show", "pinned", directory.join(name).to_str().unwrap()],
        secs(10),
    );
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["id"].as_u64().unwrap()
}

#[test]
fn a_start_that_fails_with_another_number_of_flows_forgets_none() {
    if tools::root("makes network namespaces") == Root::LeftOut {
        return;
    }
    let network = Network::new();
    let _servers = SERVERS.map(|server| network.nginx(server));
    let of = |flows: u32| config(&bind(), &format!("data-path = \"tc\"\nmax-flows = {flows}"), NO_CHECKS);
    let mut server = network.setup_as("one.toml", &of(8192)).start();
    serves(&network);
    let at = |name: &str| network.directory.path().join(name);
    let (file, url) = (at("download").display().to_string(), format!("http://{VIP}/large"));
    let words = ["curl", "-sf", "-m", "100", "--limit-rate", "15M", "--noproxy", "*", "-o", &file, &url];
    let mut download = Running(network.command(CLIENT, &words).stderr(Stdio::null()).spawn().unwrap());
    eventually("it has begun", secs(20), || {
        fs::metadata(&file).is_ok_and(|file| file.len() > 0).then_some(())
    });
    server.signal(Signal::SIGKILL);
    server.wait_end(secs(10));
    let directory = link(&network, "tc").parent().unwrap().to_owned();
    let flows = map(&directory, "flows-8192");
    fails(&network, "one.toml", &of(16_384));
    assert!(!directory.join("flows-16384").exists(), "what the failed start made is gone");
    assert_eq!(map(&directory, "flows-8192"), flows);
    let server = network.setup_as("one.toml", &of(8192)).start();
    assert_eq!(map(&directory, "flows-8192"), flows, "the next start goes on with them");
    eventually("it knows the flow", secs(20), || {
        let of = |at: &str| server.backend(at)["in_flight"].as_u64();
        (of("10.77.0.14:80")? + of("10.77.0.15:80")? >= 1).then_some(())
    });
    let events = server.said(&["events"]);
    assert!(events.contains("in the place of the program that an earlier start had left"), "{events}");
    assert!(download.0.wait().unwrap().success() && are_same(&at("download"), &at("large")));
    stop(server);
    // The one with another number takes its own.
    let server = network.setup_as("one.toml", &of(16_384)).start();
    serves(&network);
    eventually("the other table is gone", secs(20), || {
        (directory.join("flows-16384").exists() && !directory.join("flows-8192").exists()).then_some(())
    });
    stop(server);
    assert!(directories(&network).is_empty());
}
