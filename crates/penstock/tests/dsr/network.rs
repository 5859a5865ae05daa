//! Four machines in network namespaces on one bridge: a client, a balancer, and two servers that have the address of the
//! service on their loopback interface, where it answers no ARP request.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use testing::network::Machine;
use testing::server::Setup;
use testing::{Server, eventually, secs};

pub(crate) const VIP: &str = "10.77.0.100";
pub(crate) const VIP6: &str = "fd77::100";

/// Machines, by their places in [`Network`].
pub(crate) const CLIENT: usize = 0;
pub(crate) const BALANCER: usize = 1;
pub(crate) const SERVERS: [usize; 2] = [2, 3];
pub(crate) const SWITCH: usize = 4;

/// Bytes of the file that servers give.
pub(crate) const LARGE: usize = 90_000_000;

pub(crate) struct Network {
    /// The machines, and the switch.
    machines: Vec<Machine>,
    pub(crate) directory: tempfile::TempDir,
}

impl Network {
    pub(crate) fn new() -> Self {
        let machines = ["c", "l", "a", "b", "s"].map(Machine::new).into();
        let network = Self { machines, directory: tempfile::tempdir().unwrap() };
        let switch = &network.machines[4];
        switch.ip(&["link", "add", "br0", "type", "bridge", "mcast_snooping", "0"]);
        switch.ip(&["link", "set", "br0", "up"]);
        (0..4).for_each(|machine| network.plug(machine));
        for server in SERVERS {
            for setting in ["arp_ignore=1", "arp_announce=2"] {
                network.run(server, &["sysctl", "-qw", &format!("net.ipv4.conf.all.{setting}")]);
            }
            network.machines[server].ip(&["addr", "add", &format!("{VIP}/32"), "dev", "lo"]);
            network.machines[server].ip(&["addr", "add", &format!("{VIP6}/128"), "dev", "lo"]);
        }
        network.run(BALANCER, &["sysctl", "-qw", "net.ipv4.ip_forward=0"]);
        network
    }

    /// Adds a second balancer.
    pub(crate) fn add_balancer(&mut self) -> usize {
        let number = self.machines.len();
        self.machines.push(Machine::new("m"));
        self.plug(number);
        self.run(number, &["sysctl", "-qw", "net.ipv4.ip_forward=0"]);
        number
    }

    pub(crate) fn machine(&self, machine: usize) -> &Machine {
        &self.machines[machine]
    }

    /// Connects a machine with the switch.
    pub(crate) fn plug(&self, machine: usize) {
        let (here, switch, port) = (&self.machines[machine], &self.machines[4], format!("p{machine}"));
        switch.ip(&["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", here.name()]);
        switch.ip(&["link", "set", &port, "master", "br0", "up"]);
        here.ip(&["addr", "add", &format!("10.77.0.{}/24", 12 + machine), "dev", "eth0"]);
        here.ip(&["addr", "add", &format!("fd77::{}/64", 12 + machine), "dev", "eth0"]);
        here.ip(&["link", "set", "eth0", "up"]);
    }

    pub(crate) fn unplug(&self, machine: usize) {
        self.machines[4].ip(&["link", "del", &format!("p{machine}")]);
    }

    /// Cuts the link of a machine, or repairs it.
    pub(crate) fn set_link(&self, machine: usize, state: &str) {
        self.machines[4].ip(&["link", "set", &format!("p{machine}"), state]);
    }

    /// Gives a server a virtual address, or takes it away: `add` or `del`.
    pub(crate) fn set_vip(&self, server: usize, change: &str, vip: &str) {
        let prefix = if vip.contains(':') { 128 } else { 32 };
        self.machines[server].ip(&["addr", change, &format!("{vip}/{prefix}"), "dev", "lo"]);
    }

    /// Name of the namespace of a machine.
    pub(crate) fn name(&self, machine: usize) -> &str {
        self.machines[machine].name()
    }

    /// Runs `ip` for a machine.
    pub(crate) fn ip(&self, machine: usize, arguments: &[&str]) {
        self.machines[machine].ip(arguments);
    }

    /// Ethernet address of a machine.
    pub(crate) fn ethernet(&self, machine: usize) -> String {
        self.run(machine, &["cat", "/sys/class/net/eth0/address"]).trim().to_owned()
    }

    pub(crate) fn address(&self, machine: usize) -> String {
        format!("10.77.0.{}", 12 + machine)
    }

    /// A program on a machine.
    pub(crate) fn command(&self, machine: usize, words: &[&str]) -> Command {
        self.machines[machine].command(words)
    }

    /// Runs a program on a machine, which must succeed. Returns what it says.
    #[track_caller]
    pub(crate) fn run(&self, machine: usize, words: &[&str]) -> String {
        self.machines[machine].run(words)
    }

    pub(crate) fn output(&self, machine: usize, words: &[&str]) -> Output {
        self.machines[machine].output(words)
    }

    /// Starts the balancer.
    #[track_caller]
    pub(crate) fn balancer(&self, config: &str) -> Server {
        self.setup(config).start()
    }

    pub(crate) fn setup(&self, config: &str) -> Setup {
        self.machines[BALANCER].setup(config)
    }

    /// The same through a further program.
    pub(crate) fn setup_through(&self, config: &str, [a, b, c]: [&str; 3]) -> Setup {
        Setup::new(config).through(["ip", "netns", "exec", self.machines[BALANCER].name(), a, b, c])
    }

    /// Starts nginx on a server: `/` says which one it is, `/large` gives a file, and files can be put. At an address for which
    /// there is a file `broken-ADDRESS` it answers with an error.
    pub(crate) fn nginx(&self, server: usize) -> Running {
        let root = self.root(server);
        fs::create_dir_all(&root).unwrap();
        let large = self.directory.path().join("large");
        if !large.exists() {
            fs::write(&large, noise(LARGE)).unwrap();
        }
        if !root.join("large").exists() {
            fs::hard_link(&large, root.join("large")).unwrap();
        }
        fs::write(root.join("index.html"), server.to_string()).unwrap();
        let config = root.with_extension("conf");
        let at = root.display();
        // The temporary files and the files that are put are in one file system.
        let text = format!(
            "daemon off; user root; worker_processes 1; pid {at}.pid; error_log stderr;\n\
             events {{}}\n\
             http {{ access_log off; client_body_temp_path {at}.body; proxy_temp_path {at}.proxy;\n\
             fastcgi_temp_path {at}.fastcgi; uwsgi_temp_path {at}.uwsgi; scgi_temp_path {at}.scgi;\n\
             client_max_body_size 100m; send_timeout 1h;\n\
             server {{ listen *:80; listen *:8080; listen [::]:80; listen [::]:8080; root {at}; dav_methods PUT;\n\
             if (-f {at}/broken-$server_addr) {{ return 503; }}
             add_header X-Server {server} always; }} }}\n"
        );
        fs::write(&config, text).unwrap();
        let mut command = self.command(server, &["nginx", "-e", "stderr", "-c", config.to_str().unwrap()]);
        let running = Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let url = format!("http://{}/", self.address(server));
        eventually("nginx answers", secs(30), || {
            self.output(server, &["curl", "-s", "-m", "2", &url]).status.success().then_some(())
        });
        running
    }

    /// Directory of the files of a server.
    pub(crate) fn root(&self, server: usize) -> PathBuf {
        self.directory.path().join(format!("root{server}"))
    }

    /// What the client gets, by curl.
    pub(crate) fn curl(&self, arguments: &[&str]) -> Output {
        let words = [&["curl", "--silent", "--show-error", "--max-time", "60", "--noproxy", "*"], arguments];
        self.output(CLIENT, &words.concat())
    }

    /// Which server answers a new connection.
    #[track_caller]
    pub(crate) fn visit(&self, address: &str) -> String {
        let output = self.curl(&["-m", "30", &format!("http://{address}/")]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Switches an offload of the network card of a machine.
    pub(crate) fn offload(&self, machine: usize, feature: &str, state: &str) {
        self.run(machine, &["ethtool", "-K", "eth0", feature, state]);
    }

    /// Lets the balancer put segments together, or not. A virtual interface does so only with those of a neighbour that cuts
    /// long frames itself; one with a program in the driver lets its neighbour send no others.
    pub(crate) fn set_gro(&self, state: &str) {
        self.offload(BALANCER, "gro", state);
        let cut = if state == "on" { "off" } else { "on" };
        self.output(SWITCH, &["ethtool", "-K", &format!("p{BALANCER}"), "tso", cut]);
    }

    /// Lets the driver of the switch deliver what a program in the driver of a machine sends: it wants a program, too.
    pub(crate) fn pass_in_driver(&self, machine: usize) {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../sys/bpf/dsr-xdp.bpf.o");
        let port = format!("p{machine}");
        // Without a service it lets all pass.
        self.machines[4].ip(&["link", "set", &port, "xdpdrv", "object", program, "section", "xdp.frags"]);
    }

    /// Puts a program that lets all pass on the interface of a machine.
    pub(crate) fn pass_at(&self, machine: usize) {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../sys/bpf/dsr-xdp.bpf.o");
        self.machines[machine].ip(&[
            "link",
            "set",
            "eth0",
            "xdpdrv",
            "object",
            program,
            "section",
            "xdp.frags",
        ]);
    }

    /// Starts the balancer where it sees the file systems of the whole machine: `ip netns exec` hides those in /sys.
    #[track_caller]
    pub(crate) fn balancer_with_all_files(&self, config: &str) -> Server {
        self.setup_with_all_files(config).start()
    }

    pub(crate) fn setup_with_all_files(&self, config: &str) -> Setup {
        Setup::new(config).through(["nsenter", &self.space()])
    }

    /// The same with the configuration in a file of this name, by which the next start is known to be of the same instance.
    pub(crate) fn setup_as(&self, file: &str, config: &str) -> Setup {
        let setup = self.setup_with_all_files(config);
        let file = self.directory.path().join(file);
        fs::write(&file, config.replace("@DIR@", setup.dir().to_str().unwrap())).unwrap();
        setup.arguments(&["serve", "--config", file.to_str().unwrap()])
    }

    /// The option of nsenter(1) for the network of the balancer.
    pub(crate) fn space(&self) -> String {
        format!("--net=/run/netns/{}", self.machines[BALANCER].name())
    }

    /// Bytes that a machine has received.
    pub(crate) fn received(&self, machine: usize) -> u64 {
        self.statistic(machine, "rx_bytes")
    }

    /// Frames that a machine has received: segments that are still one frame count once.
    pub(crate) fn frames(&self, machine: usize) -> u64 {
        self.statistic(machine, "rx_packets")
    }

    fn statistic(&self, machine: usize, name: &str) -> u64 {
        let text = self.run(machine, &["cat", &format!("/sys/class/net/eth0/statistics/{name}")]);
        text.trim().parse().unwrap()
    }
}

/// A program that is ended with SIGTERM, so that it takes its children with it.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let id = nix::unistd::Pid::from_raw(i32::try_from(self.0.id()).unwrap());
        let _ = nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

/// Bytes of which no two parts are alike.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| next().to_le_bytes()).collect();
    bytes.truncate(length);
    bytes
}

/// Whether two files have the same content.
pub(crate) fn are_same(one: &Path, other: &Path) -> bool {
    fs::read(one).unwrap() == fs::read(other).unwrap()
}

/// The configuration of a balancer in front of both servers, with a few lines more in its sections.
pub(crate) fn config(bind: &str, listener: &str, pool: &str) -> String {
    let port = if bind.contains(":53\"") { 53 } else { 80 };
    format!(
        "[control]\nsocket = \"@DIR@/control.sock\"\n[access-log]\ntarget = \"off\"\n\
         [process]\nuser = \"nobody\"\nworkers = 2\n\
         [listener.web]\nbind = {bind}\nprotocol = \"dsr\"\ninterface = \"eth0\"\npool = \"app\"\n{listener}\n\
         [pool.app]\nbackends = [\"10.77.0.14:{port}\", \"10.77.0.15:{port}\"]\nbalance = \"maglev\"\n{pool}\n"
    )
}

/// A check that finds a fault within a few seconds. Answers that are late because the machine is busy are no fault for it.
pub(crate) const CHECKED: &str =
    "health = { tcp = true, interval = \"1s\", timeout = \"1s\", rise = 1, fall = 2 }";

/// A check beside connections that must not break: a backend that is down loses them.
pub(crate) const PATIENT: &str = "health = { tcp = true, interval = \"10s\", timeout = \"10s\" }";

/// Names of listeners that have one family of addresses each.
pub(crate) const FAMILIES: [&str; 2] = ["v4", "v6"];

/// The same configuration with the listeners and pools of these families alone.
pub(crate) fn only(config: &str, families: &[&str]) -> String {
    let places: Vec<_> =
        FAMILIES.iter().filter_map(|one| config.find(&format!("[listener.{one}]"))).collect();
    let (head, parts) = (&config[..places[0]], [&config[places[0]..places[1]], &config[places[1]..]]);
    let chosen = FAMILIES.iter().zip(parts).filter(|(one, _)| families.contains(one));
    chosen.fold(head.to_owned(), |text, (_, part)| text + part)
}

/// An address as it is in a URL.
pub(crate) fn host(vip: &str) -> String {
    if vip.contains(':') { format!("[{vip}]") } else { vip.to_owned() }
}
