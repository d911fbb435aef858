// Runs Modelfiles with Ollama's own packages: its parser reads them, its template package executes their TEMPLATE. Built
// inside a checkout of github.com/ollama/ollama (tests/parity/ollama_parity.py --ollama).
//
//	request: {"template", "modelfile", "conversations": [[{"role", "content"}]]}, one a line
//	answer:  {"template", "stop", "texts"} or {"error"}
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"strings"

	"github.com/ollama/ollama/api"
	"github.com/ollama/ollama/parser"
	"github.com/ollama/ollama/template"
)

type request struct {
	Modelfile     string
	Conversations [][]api.Message
}

type answer struct {
	Template string   `json:"template"`
	Stop     []string `json:"stop"`
	Texts    []string `json:"texts"`
	Error    string   `json:"error,omitempty"`
}

func texts(r request) (a answer, err error) {
	file, err := parser.ParseFile(strings.NewReader(r.Modelfile))
	if err != nil {
		return
	}
	for _, command := range file.Commands {
		switch command.Name {
		case "template":
			a.Template = command.Args
		case "stop":
			a.Stop = append(a.Stop, command.Args)
		}
	}
	parsed, err := template.Parse(a.Template)
	if err != nil {
		return
	}
	for _, messages := range r.Conversations {
		var text bytes.Buffer
		if err = parsed.Execute(&text, template.Values{Messages: messages}); err != nil {
			return
		}
		a.Texts = append(a.Texts, text.String())
	}
	return
}

func main() {
	out := json.NewEncoder(os.Stdout)
	for decoder := json.NewDecoder(bufio.NewReader(os.Stdin)); decoder.More(); {
		var r request
		err := decoder.Decode(&r)
		a := answer{}
		if err == nil {
			a, err = texts(r)
		}
		if err != nil {
			a.Error = err.Error()
		}
		if out.Encode(a) != nil {
			os.Exit(1)
		}
	}
}
