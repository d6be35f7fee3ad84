// Prints what compose makes of a compose file, as JSON: the loader of docker compose without the rest of it.
//
//	compose-config -f FILE [--env-file FILE] [--profile NAME]...
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/compose-spec/compose-go/v2/cli"
)

type names []string

func (list *names) String() string         { return fmt.Sprint(*list) }
func (list *names) Set(value string) error { *list = append(*list, value); return nil }

func main() {
	var files, envFiles, profiles names
	flag.Var(&files, "f", "compose file")
	flag.Var(&envFiles, "env-file", "file of variables; the shell's go before it")
	flag.Var(&profiles, "profile", "profile; may be repeated")
	flag.Parse()
	told, err := config(files, envFiles, profiles)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(string(told))
}

// The options are those of docker compose, in its order.
func config(files, envFiles, profiles []string) ([]byte, error) {
	if len(files) == 0 {
		return nil, fmt.Errorf("name a compose file with -f")
	}
	options, err := cli.NewProjectOptions(files,
		cli.WithWorkingDirectory(filepath.Dir(files[0])),
		cli.WithOsEnv,
		cli.WithEnvFiles(envFiles...),
		cli.WithDotEnv,
		cli.WithDefaultProfiles(profiles...),
	)
	if err != nil {
		return nil, err
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return nil, err
	}
	if project, err = project.WithServicesEnvironmentResolved(true); err != nil {
		return nil, err
	}
	return project.MarshalJSON()
}
