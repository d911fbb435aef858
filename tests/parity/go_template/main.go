// Runs templates with Go's own text/template, over the variables that Ollama gives them.
//
//	request: {"template", "modelfile", "conversations": [[{"role", "content"}]]}, one a line
//	answer:  {"template", "texts"} or {"error"}
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"text/template"
)

type message struct{ Role, Content string }

type request struct {
	Template      string
	Conversations [][]*message
}

type answer struct {
	Template string   `json:"template"`
	Texts    []string `json:"texts"`
	Error    string   `json:"error,omitempty"`
}

func texts(r request) (a answer, err error) {
	a.Template = r.Template
	parsed, err := template.New("").Option("missingkey=zero").Parse(r.Template)
	if err != nil {
		return
	}
	for _, messages := range r.Conversations {
		var text bytes.Buffer
		if err = parsed.Execute(&text, map[string]any{"Messages": messages, "System": "", "Response": ""}); err != nil {
			return
		}
		a.Texts = append(a.Texts, text.String())
	}
	return
}

func main() {
	in := bufio.NewReader(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for decoder := json.NewDecoder(in); decoder.More(); {
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
