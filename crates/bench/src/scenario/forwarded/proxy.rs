//! The userland proxy: the process that Docker starts for each published port. It relays connections from the host's
//! loopback interface, because the kernel does not forward those.

use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};

use crate::context::Context;
use crate::error::Error;
use crate::process::{self, Launch};
use crate::version;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Userland {
    DockerProxy(PathBuf),
    /// A relay that starts one process per connection.
    Socat(PathBuf),
}

impl Userland {
    /// Finds Docker's proxy where Debian and Docker install it, and `socat`. Also returns missing programs.
    pub fn find() -> (Vec<Self>, Vec<Error>) {
        let docker = process::find("docker-proxy", "docker.io").or_else(|missing| {
            let places = ["/usr/libexec/docker/docker-proxy", "/usr/lib/docker/docker-proxy"];
            places.iter().map(PathBuf::from).find(|path| path.is_file()).ok_or(missing)
        });
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for program in
            [docker.map(Userland::DockerProxy), process::find("socat", "socat").map(Userland::Socat)]
        {
            match program {
                Ok(program) => found.push(program),
                Err(error) => missing.push(error),
            }
        }
        (found, missing)
    }

    pub fn name(&self) -> &'static str {
        match self {
            Userland::DockerProxy(_) => "docker-proxy",
            Userland::Socat(_) => "socat",
        }
    }

    pub fn version(&self) -> Option<String> {
        match self {
            Userland::DockerProxy(_) => {
                let packages = ["docker.io", "docker-ce", "moby-engine"];
                packages.iter().find_map(|name| Some(format!("{name} {}", version::of_package(name)?)))
            }
            Userland::Socat(path) => version::of(path, &["-V"]),
        }
    }

    /// Builds the command, pinned to the load's cores, because proxies usually run beside an application.
    pub fn launch(&self, context: &Context, listen: SocketAddrV4, backend: SocketAddrV4) -> Launch {
        let cores = &context.cores.load;
        match self {
            // docker-proxy reports readiness to its parent on descriptor 3: keep that number free of sockets.
            Userland::DockerProxy(path) => Launch::new(self.name(), "/bin/sh", cores)
                .args(["-c", "exec \"$@\" 3>/dev/null", "sh"])
                .arg(path)
                .args(docker_arguments(listen, backend)),
            Userland::Socat(path) => {
                Launch::new(self.name(), path, cores).args(socat_arguments(listen, backend))
            }
        }
    }

    /// Returns the command line for the report.
    pub fn command(&self, listen: SocketAddrV4, backend: SocketAddrV4) -> String {
        let line =
            |path: &Path, arguments: Vec<String>| format!("{} {}\n", path.display(), arguments.join(" "));
        match self {
            Userland::DockerProxy(path) => line(path, docker_arguments(listen, backend)),
            Userland::Socat(path) => line(path, socat_arguments(listen, backend)),
        }
    }
}

fn docker_arguments(listen: SocketAddrV4, backend: SocketAddrV4) -> Vec<String> {
    let ends = [("host", listen), ("container", backend)];
    let mut arguments = vec!["-proto".to_owned(), "tcp".to_owned()];
    for (name, address) in ends {
        arguments.extend([format!("-{name}-ip"), address.ip().to_string()]);
        arguments.extend([format!("-{name}-port"), address.port().to_string()]);
    }
    arguments
}

fn socat_arguments(listen: SocketAddrV4, backend: SocketAddrV4) -> Vec<String> {
    vec![
        format!("TCP-LISTEN:{},bind={},reuseaddr,fork,nodelay,backlog=1024", listen.port(), listen.ip()),
        format!("TCP:{backend},nodelay"),
    ]
}
