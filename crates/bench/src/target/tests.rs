use std::process::Command;

use super::front::{Headers, Protocol, Replies, Splicing, Tls, TlsVersion};
use super::*;
use crate::context::{Extent, Interrupt};

/// Programs that can check their configuration, with the option for the check.
const JUDGES: [(Program, &str); 2] = [(Program::Haproxy, "-c"), (Program::Nginx, "-t")];

fn fronts(context: &Context) -> Vec<Front> {
    let tls = Tls::generate(context, certificate::Key::EcdsaP256, TlsVersion::V13).unwrap();
    let mut fronts = Vec::new();
    for backend in [context.free_tcp().unwrap(), context.free_unix()] {
        let front = |protocol| Front::new(protocol, context.free_tcp().unwrap(), backend.clone());
        for headers in [Headers::Added, Headers::Untouched] {
            let http = front(Protocol::Http).headers(headers);
            fronts.extend([http.clone().tls(tls.clone()), http]);
        }
        fronts.extend([front(Protocol::Tcp).splicing(Splicing::On), front(Protocol::Tcp)]);
    }
    let datagrams = |replies| {
        let (listen, backend) = (context.free_udp().unwrap(), context.free_udp().unwrap());
        Front::new(Protocol::Udp(replies), listen, backend)
    };
    fronts.extend([Replies::One, Replies::Any].map(datagrams));
    fronts
}

/// Whether the program is here, and speaks the protocol of the task.
fn takes_part(context: &Context, program: Program, front: &Front) -> bool {
    let relay = front.protocol != Protocol::Http;
    match program {
        Program::Nginx if relay && nginx::find_stream_module().is_err() => false,
        Program::Haproxy if matches!(front.protocol, Protocol::Udp(_)) => false,
        _ => program.find(context).is_ok(),
    }
}

#[test]
fn every_configuration_is_liked_by_the_program_that_gets_it() {
    let context = Context::new("/nonexistent".into(), Interrupt::default(), Extent::Quick).unwrap();
    for (program, option) in JUDGES {
        for front in fronts(&context) {
            if !takes_part(&context, program, &front) {
                continue;
            }
            let Prepared { launch, configuration } = program.prepare(&context, &front).unwrap();
            let mut command = Command::new(&launch.program);
            let output = command.args(&launch.arguments).arg(option).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{}: {said}\n{configuration}", launch.name);
            assert!(!said.contains("[WARNING]") && !said.contains("[warn]"), "{said}\n{configuration}");
        }
    }
}

#[test]
fn pen_takes_part_in_every_task_of_datagrams() {
    let context = Context::new("/nonexistent".into(), Interrupt::default(), Extent::Quick).unwrap();
    if Program::Pen.find(&context).is_err() {
        return;
    }
    for front in fronts(&context).iter().filter(|front| matches!(front.protocol, Protocol::Udp(_))) {
        let prepared = Program::Pen.prepare(&context, front).unwrap();
        assert!(prepared.configuration.contains(" -U "), "{}", prepared.configuration);
    }
}

#[test]
fn another_build_of_a_peer_is_measured_and_a_path_without_a_file_is_told() {
    assert_eq!(Program::Haproxy.peer_at(Some("/bin/sh".into())).unwrap(), PathBuf::from("/bin/sh"));
    let told = Program::Haproxy.peer_at(Some("/nonexistent/haproxy".into())).unwrap_err().to_string();
    assert!(told.starts_with("HAPROXY=/nonexistent/haproxy: no such file; "), "{told}");
}

#[test]
fn rivals_add_the_headers_of_a_front_door_unless_they_are_told_not_to() {
    let context = Context::new("/nonexistent".into(), Interrupt::default(), Extent::Quick).unwrap();
    let front = Front::new(Protocol::Http, context.free_tcp().unwrap(), context.free_unix());
    for (program, _) in JUDGES {
        if program.find(&context).is_err() {
            continue;
        }
        let configured = |headers| {
            let front = front.clone().headers(headers);
            program.prepare(&context, &front).unwrap().configuration.to_lowercase()
        };
        let (added, bare) = (configured(Headers::Added), configured(Headers::Untouched));
        for name in ["forward", "x-forwarded-proto", "x-forwarded-host", "x-request-id"] {
            assert!(added.contains(name) && !bare.contains(name), "{program:?}: {name}\n{added}\n{bare}");
        }
    }
}

/// Reports show the configurations, and indentation shows their structure to the reader.
#[test]
fn configurations_are_indented_by_what_their_lines_belong_to() {
    let context = Context::new("/nonexistent".into(), Interrupt::default(), Extent::Quick).unwrap();
    for (program, _) in JUDGES {
        for front in fronts(&context) {
            if !takes_part(&context, program, &front) {
                continue;
            }
            let configuration = program.prepare(&context, &front).unwrap().configuration;
            let mut depth = 0;
            for line in configuration.lines().filter(|line| !line.is_empty()) {
                let text = line.trim_start();
                let opens = match program {
                    Program::Nginx => {
                        depth -= usize::from(text == "}");
                        text.ends_with('{')
                    }
                    _ => {
                        let sections = ["global", "defaults", "frontend ", "backend "];
                        let section = sections.iter().any(|name| text.starts_with(name));
                        depth = if section { 0 } else { depth };
                        section
                    }
                };
                assert_eq!(line.len() - text.len(), depth * 4, "{line:?}\n{configuration}");
                depth += usize::from(opens);
            }
        }
    }
}

#[test]
fn programs_are_told_to_hold_no_more_connections_than_the_limit_of_descriptors_allows() {
    let mut context = Context::new("/nonexistent".into(), Interrupt::default(), Extent::Quick).unwrap();
    let front = Front::new(Protocol::Http, context.free_tcp().unwrap(), context.free_unix());
    for (descriptors, expected) in [(1_000_000, 4_000), (crate::context::descriptors_for(64), 64 + 100)] {
        context.descriptors = descriptors;
        let configuration = Program::Haproxy.prepare(&context, &front).unwrap().configuration;
        assert!(configuration.contains(&format!("    maxconn {expected}\n")), "{configuration}");
    }
}
