//! What `penstock tunnel` says of its configuration: where one goes, what is wrong with it, and what it cannot do here.

use std::fs;
use std::net::TcpListener;

use testing::tunnel::Place;

#[test]
fn down_takes_the_configuration_as_the_other_commands_do() {
    let place = Place::new();
    let forward = "connect = \"127.0.0.1:1\"\ncheck = \"none\"\n";
    for (file, name) in [("penstock.toml", "t"), ("other.toml", "db")] {
        place.write(file, &format!("[tunnel.{name}]\nhost = \"far\"\n[tunnel.{name}.forward.x]\n{forward}"));
    }
    place.run(&["down", "-c", &place.shown("other.toml"), "tt"]).code(1).says("there are: db");
    let up = place.start(&["up", "-c", &place.shown("other.toml"), "db"]);
    up.wait_for(": up");
    place.run(&["down", "-c", &place.shown("other.toml"), "db"]).code(0).says("tunnel db is down");
    up.finish().code(0);
}

#[test]
fn without_a_configuration_one_that_works_is_shown_with_its_place() {
    let place = Place::new();
    let run = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        command.env_remove("PENSTOCK_CONFIG");
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let usual = place.path("home/.config/penstock/penstock.toml");
    for arguments in [&["up", "app"][..], &["check", "app"], &["with", "app", "--", "true"]] {
        let (code, said) = run(arguments);
        assert_eq!(code, Some(2), "{said}");
        let places = format!("there is no {} and no /etc/penstock/penstock.toml\n", usual.display());
        assert!(said.contains(&places) && said.contains(&format!("write {}", usual.display())), "{said}");
        fs::write(place.path("shown"), &said[said.find("[tunnel.app]").unwrap()..]).unwrap();
    }
    fs::copy(place.path("shown"), &usual).unwrap();
    let (code, said) = run(&["with", "db", "--", "true"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("no tunnel is named \"db\"\n  hint: there are: app\n"), "{said}");
    for command in ["down", "status"] {
        let (code, said) = run(&[command, "db"]);
        let hint = format!("hint: no tunnel has that name in {}: there are: app\n", usual.display());
        assert!(code == Some(1) && said.contains(&hint), "{said}");
        let (code, said) = run(&[command, "app"]);
        assert!(code == Some(1) && said.ends_with("tunnel app does not run\n"), "{said}");
    }
    let server =
        "[listener.web]\nbind = \"127.0.0.1:0\"\npool = \"p\"\n[pool.p]\nbackends = [\"127.0.0.1:9\"]\n";
    fs::write(&usual, server).unwrap();
    let (_, said) = run(&["up", "app"]);
    assert!(said.contains(&format!("hint: add [tunnel.app] to {}\n", usual.display())), "{said}");
}

#[test]
fn a_port_that_is_taken_here_is_said_with_its_forward_and_nothing_was_up() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    place.configure(&format!(
        "[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nlisten = \"{at}\"\nconnect = \"127.0.0.1:9\"\n"
    ));
    let ran = place.run(&["up", "t", "--once"]);
    ran.code(1).says(&format!("forward db: cannot listen on {at}: Address already in use"));
    ran.says("(name another port, or ");
    // A service that never answers: there was a connection, which comes down.
    place.configure("[tunnel.t]\nhost = \"far\"\n[tunnel.t.forward.db]\nconnect = \"127.0.0.1:9\"\n");
    place.run(&["up", "t", "--once"]).code(1).says("tunnel t: down\n");
    // And a host that cannot be reached.
    place.configure("[tunnel.t]\nhost = \"no.invalid\"\n[tunnel.t.forward.db]\nconnect = \"127.0.0.1:9\"\n");
    let ran = place.run(&["up", "t", "--once"]);
    assert!(!ran.code(1).err.contains("down"), "{}", ran.err);
    place.is_clean();
}

#[test]
fn a_file_that_is_missing_is_told_with_what_goes_into_it() {
    let place = Place::new();
    place.run(&["check", "none"]).code(2);
    let missing = place.shown("nowhere.toml");
    let of_all = [
        &["up", "app", "-c", &missing][..],
        &["check", "app", "-c", &missing],
        &["with", "app", "-c", &missing, "--", "true"],
        &["unwind", "-c", &missing],
        // PENSTOCK_CONFIG names one that was never written.
        &["check", "app"],
    ];
    for arguments in of_all {
        let ran = place.run(arguments);
        let file = if arguments.contains(&"-c") { &missing } else { &place.shown("penstock.toml") };
        ran.code(2).says(&format!("error: there is no {file}\n  hint: check the path, or write that file"));
        ran.says("[tunnel.NAME]\nhost = ").says("[tunnel.NAME.forward.db]\nconnect = ");
        assert!(!ran.err.contains("penstock demo"), "{}", ran.err);
    }
    // What it shows is a configuration.
    let ran = place.run(&["check", "app"]);
    let shown = ran.err[ran.err.find("[tunnel.NAME]").unwrap()..].replace("NAME", "app");
    place.write("penstock.toml", &shown);
    place.run(&["with", "other", "--", "true"]).code(2).says("there are: app\n");
}

#[test]
fn of_two_tunnels_that_listen_at_one_place_either_can_be_up() {
    let place = Place::new();
    let free = format!("127.0.0.1:{}", testing::port::free());
    let forward = "connect = \"127.0.0.1:1\"\ncheck = \"none\"\n";
    let text = format!(
        "[tunnel.old]\nhost = \"far\"\n[tunnel.old.forward.tcp]\nlisten = \"{free}\"\n{forward}\
         [tunnel.old.forward.unix]\nlisten = \"unix:$D/db.sock\"\n{forward}\
         [tunnel.new]\nhost = \"far\"\n[tunnel.new.forward.tcp]\nlisten = \"{free}\"\n{forward}\
         [tunnel.unix]\nhost = \"far\"\n[tunnel.unix.forward.unix]\nlisten = \"unix:$D/db.sock\"\n{forward}\
         [tunnel.else]\nhost = \"far\"\n[tunnel.else.forward.db]\n{forward}"
    );
    place.configure(&text);
    let check = |arguments: &[&str]| {
        let mut command = std::process::Command::new(testing::binary());
        let output = command.arg("check").args(arguments).arg(place.path("penstock.toml")).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    // Both lines are named.
    let (code, said) = check(&[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains(".toml:14:10: tunnel.new.forward.tcp.listen: tunnel old listens there, too (line 4): ")
    );
    assert!(
        said.contains(".toml:20:10: tunnel.unix.forward.unix.listen: tunnel old listens there, too (line 8)")
    );
    assert_eq!(check(&["--strict"]).0, Some(2));
    for name in ["old", "new", "unix", "else"] {
        place.run(&["with", name, "--", "true"]).code(0);
    }
    // While one is up, the others are told of it; what is up is not disturbed.
    place.run(&["up", "old", "--detach"]).code(0);
    for (name, at) in [("new", free.to_string()), ("unix", format!("unix:{}", place.shown("db.sock")))] {
        for arguments in
            [&["up", name][..], &["up", name, "--once"], &["up", name, "--detach"], &["check", name]]
        {
            let ran = place.run(arguments);
            ran.code(1).says(&format!("cannot listen on {at}: "));
            ran.says("tunnel old listens there; `penstock tunnel down old` ends it");
            assert!(!ran.err.contains("name another"), "{}", ran.err);
        }
        place.run(&["with", name, "--", "true"]).code(125).says("tunnel old listens there");
    }
    place.run(&["with", "else", "--", "true"]).code(0);
    place.run(&["status"]).code(0).says("old: connected to far");
    place.run(&["down", "old"]).code(0);
    place.run(&["with", "new", "--", "true"]).code(0);
    // Of one tunnel both would have to be there at once.
    let twice = format!("{text}[tunnel.else.forward.tcp]\nlisten = \"{free}\"\n{forward}");
    place.configure(
        &twice.replace(
            "[tunnel.else.forward.db]\n",
            &format!("[tunnel.else.forward.db]\nlisten = \"{free}\"\n"),
        ),
    );
    let (code, said) = check(&[]);
    assert_eq!(code, Some(2), "{said}");
    place.is_clean();
}
