// An SSH server (gliderlabs/ssh) that runs commands as its examples do: without a session or a group of their own.
//
// Arguments: host key, authorized_keys. Prints its port.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"

	"github.com/gliderlabs/ssh"
)

func main() {
	allowed := map[string]bool{}
	text, err := os.ReadFile(os.Args[2])
	for err == nil && len(text) > 0 {
		key, _, _, rest, failed := ssh.ParseAuthorizedKey(text)
		if failed != nil {
			break
		}
		allowed[string(key.Marshal())] = true
		text = rest
	}
	server := &ssh.Server{
		Handler: run,
		PublicKeyHandler: func(_ ssh.Context, key ssh.PublicKey) bool {
			return allowed[string(key.Marshal())]
		},
	}
	if err := server.SetOption(ssh.HostKeyFile(os.Args[1])); err != nil {
		panic(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	panic(server.Serve(listener))
}

func run(session ssh.Session) {
	command := exec.Command("/bin/sh", "-c", session.RawCommand())
	input, err := command.StdinPipe()
	if err != nil {
		panic(err)
	}
	command.Stdout, command.Stderr = session, session.Stderr()
	if err := command.Start(); err != nil {
		_ = session.Exit(127)
		return
	}
	go func() {
		_, _ = io.Copy(input, session)
		_ = input.Close()
	}()
	status := 0
	if err := command.Wait(); err != nil {
		status = 255
		if ended, ok := err.(*exec.ExitError); ok && ended.ExitCode() >= 0 {
			status = ended.ExitCode()
		}
	}
	_ = session.Exit(status)
}
