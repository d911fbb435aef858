"""The messages that remedies.py provokes, and the ways to follow their advice. Standard library only."""

import json
import pathlib
import shutil

import bad_input

USER, ANSWER = bad_input.GOOD_RECORD["messages"]


def chat(user=USER["content"], answer=ANSWER["content"], **more):
    return {"messages": [{"role": "user", "content": user}, {"role": "assistant", "content": answer} | more]}


def shared(user="hello", answer="hi", **more):
    """A record of ShareGPT."""
    return {"conversations": [{"from": "human", "value": user}, {"from": "gpt", "value": answer}]} | more


PAIR = {"prompt": [USER], "chosen": [ANSWER], "rejected": [{"role": "assistant", "content": "no"}]}
STRINGS = {"prompt": "hello", "chosen": "hello there", "rejected": "no"}
JUDGED = [{"prompt": [USER], "completion": [{"role": "assistant", "content": answer}], "label": label}
          for answer, label in (("hi", True), ("hm", False))] * 2
BARE = "=> without the model's chat template"  # what is said of strings
GOOD = [chat()] * 3
FULL_YAML = bad_input.GOOD_YAML.replace("mode: lora, lora: { r: 4 }", "mode: full")
FILES = {  # of every row
    "val.jsonl": [chat(answer="hi")] * 2, "other.jsonl": [chat(answer="no")] * 2, "texts.jsonl": [{"text": "hello there"}] * 4,
    "pairs.jsonl": [PAIR] * 4, "pairs2.jsonl": [PAIR | {"rejected": "hm"}] * 4, "qa.jsonl": [{"question": "hello", "answer": "hello there"}] * 4,
}


def make_mixture(folder):
    """A Mixtral with the tokenizer of `model`, and so many embeddings."""
    source = bad_input.ROOT / "tests/data/families/mixtral"
    shutil.copytree(folder / "model", folder / "mixture", ignore=shutil.ignore_patterns("*.safetensors", "generation_config.json"))
    config = json.loads((source / "config.json").read_text())
    header, data = bad_input.read_safetensors(source / "model.safetensors")
    vocabulary = json.loads((folder / "model/config.json").read_text())["vocab_size"]
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        begin, end = header[name]["data_offsets"]
        row_bytes = (end - begin) // header[name]["shape"][0]
        header[name]["shape"][0] = vocabulary
        header[name]["data_offsets"] = [len(data), len(data) + vocabulary * row_bytes]
        data += bytes(vocabulary * row_bytes)
    close_gaps(header, data)
    bad_input.write_safetensors(folder / "mixture/model.safetensors", header, data)
    (folder / "mixture/config.json").write_text(json.dumps(config | {"vocab_size": vocabulary}))


def close_gaps(header, data):
    """Readers refuse bytes that belong to no tensor."""
    packed = bytearray()
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        begin, end = tensor["data_offsets"]
        tensor["data_offsets"] = [len(packed), len(packed) + end - begin]
        packed += data[begin:end]
    data[:] = packed


# Settings of a dry run | a part of the message | of its advice | ways to follow it, divided by `;`. `~name` removes a setting;
# what follows `=>` may be said afterwards.
SETTINGS = r"""
train.bf16=true train.fp16=true | are both true | keep one of them | ~train.fp16
model.dtype=fp32 train.bf16=true | is true, but `model.dtype` is fp32 | set model.dtype to bf16 or remove train.bf16 | model.dtype=bf16 ; ~train.bf16
model.dtype=bf16 train.bf16=false | is false, but `model.dtype` is bf16 | remove train.bf16 or set model.dtype to auto | \
    ~train.bf16 ; model.dtype=auto
model.dtype=fp16 | fp16 is not supported on a CPU | use bf16 or fp32 | model.dtype=bf16 ; model.dtype=fp32
train.fp16=true | fp16 is not supported on a CPU | remove it, or set train.bf16 in its place | ~train.fp16 ; ~train.fp16 train.bf16=true
tuning.mode=partial | names no parameters | add `trainable:` below `tuning:`, for example ['mlp', 'norm'] | tuning.trainable="['mlp', 'norm']"
tuning.trainable=[norm] | is for mode partial only | set tuning.mode to partial, or remove trainable | tuning.mode=partial ; ~tuning.trainable
tuning.mode=full tuning.lora.init_from=adapter | is for modes lora and qlora only | \
    set tuning.mode to lora; or merge the adapter first (sftrun merge) | tuning.mode=lora => no such file: adapter
tuning.mode=full train.loraplus_lr_ratio=16 | is for modes lora and qlora only | remove it, or set tuning.mode to lora | \
    ~train.loraplus_lr_ratio ; tuning.mode=lora
data.val=val.jsonl data.val_split=0.2 | are both set | keep one of them | ~data.val ; ~data.val_split
data.val_split=1.5 | from 1 up it is a number of records | write a share below 1 or a whole number | data.val_split=0.5 ; data.val_split=1
data.group_by_length=true | only for runs without packing | set data.packing to false, or remove group_by_length | \
    data.packing=false ; ~data.group_by_length
data.bin_tokens=256 | is more than `model.max_seq_len` | lower data.bin_tokens or raise model.max_seq_len | \
    data.bin_tokens=128 ; model.max_seq_len=256 => more than the model's 128 positions
train.optimizer=sgd train.nesterov=true | needs momentum, and `train.momentum` is 0 | set train.momentum, for example to 0.9 | train.momentum=0.9
train.eval_strategy=steps data.val=val.jsonl | is steps, but `train.eval_steps` is not set | add, for example, eval_steps: 200 | train.eval_steps=200
train.eval_strategy=steps train.eval_steps=2 | requires validation data, but there is none | \
    set data.val to a file or data.val_split to a share such as 0.05, or remove train.eval_strategy and train.eval_steps | \
    data.val=val.jsonl ; data.val_split=0.05 ; ~train.eval_strategy ~train.eval_steps
train.eval_strategy=epoch | requires validation data, but there is none | or remove train.eval_strategy | data.val=val.jsonl ; ~train.eval_strategy
train.eval_steps=2 | `train.eval_steps` requires validation data | or remove train.eval_steps | data.val=val.jsonl ; ~train.eval_steps
train.eval_on_start=true | `train.eval_on_start` requires validation data | or remove train.eval_on_start | data.val=val.jsonl ; ~train.eval_on_start
train.early_stopping_patience=2 | `train.early_stopping_patience` requires validation data, but there is none | \
    set data.val to a file or data.val_split to a share such as 0.05 | data.val=val.jsonl train.load_best_model_at_end=true
train.early_stopping_patience=2 data.val=val.jsonl | keeps no checkpoint of the best evaluation | \
    set train.load_best_model_at_end: true | train.load_best_model_at_end=true
train.early_stopping_patience=3 train.load_best_model_at_end=true data.val=val.jsonl | cannot end this run before its last step | \
    lower train.early_stopping_patience to at most 2, or train for longer | train.early_stopping_patience=2 ; train.max_steps=5
train.load_best_model_at_end=true train.eval_strategy=no | needs evaluations, and `train.eval_strategy` is no | \
    set train.eval_strategy to epoch, or to steps with train.eval_steps | \
    train.eval_strategy=epoch data.val=val.jsonl ; train.eval_strategy=steps train.eval_steps=2 data.val=val.jsonl
train.predict_with_generate=true | `train.predict_with_generate` requires validation data | set data.val to a file | data.val=val.jsonl
callbacks.events=[begin] callbacks.command=true | has the unknown event | events: checkpoint, evaluation, end, failure | \
    callbacks.events="[checkpoint, evaluation, end, failure]"
callbacks.events=[fail] callbacks.command=true | has the unknown event `fail` | did you mean | callbacks.events=[failure]
callbacks.timeout=0 callbacks.command=true | takes a time such as | write 1m, the default | callbacks.timeout=1m
train.save_every=x | takes a time such as | write, for example, 30m | train.save_every=30m ; train.save_every=90s ; train.save_every=1h30m
train.save_every=2 | a time without a unit | write 2s; for steps, set train.save_steps: 2 in its place | train.save_every=2s ; ~train.save_every train.save_steps=2
--nproc-per-node=2 parallel.timeout=0 | takes a time such as | write 30m, the default | parallel.timeout=30m
--nproc-per-node=2 parallel.stall_after=x | takes a time such as | write 30s, the default | parallel.stall_after=30s
--nproc-per-node=2 parallel.strategy=ddp parallel.dp_shard=2 | keeps whole copies | remove parallel.dp_shard or parallel.strategy | \
    ~parallel.dp_shard ; ~parallel.strategy
parallel.device_map=auto parallel.tp=2 | divides the processes of a run | remove parallel.tp or parallel.device_map | \
    ~parallel.tp ; ~parallel.device_map --nproc-per-node=2
--nproc-per-node=2 parallel.tp=2 tuning.lora.init=pissa | needs the singular values of whole matrices | \
    use tuning.lora.init default, or parallel.strategy fsdp without parallel.tp | tuning.lora.init=default ; parallel.strategy=fsdp ~parallel.tp
--nproc-per-node=2 parallel.strategy=tensor tuning.lora.init=pissa | needs the singular values of whole matrices | \
    use tuning.lora.init default, or parallel.strategy fsdp | tuning.lora.init=default ; parallel.strategy=fsdp
--nproc-per-node=2 parallel.tp=2 tuning.backend=bnb | computes with whole matrices | use tuning.backend fused | tuning.backend=fused
--nproc-per-node=2 parallel.pp=2 parallel.fetch=per_step | runs all micro-batches through a layer | remove parallel.fetch | ~parallel.fetch
--nproc-per-node=2 parallel.strategy=fsdp parallel.fetch=per_step train.objective=dpo data.train=pairs.jsonl | is for objective sft | \
    remove parallel.fetch | ~parallel.fetch
parallel.offload.optimizer=cpu train.optimizer=lion | keeps the state of adamw and adamw_8bit on the host | \
    use train.optimizer adamw or adamw_8bit, or set parallel.offload.optimizer: none | \
    train.optimizer=adamw => no effect on a CPU ; train.optimizer=adamw_8bit => no effect on a CPU ; parallel.offload.optimizer=none
parallel.offload.activations=cpu | moves what gradient checkpointing of whole layers keeps | set train.gradient_checkpointing: true | \
    train.gradient_checkpointing=true => no effect on a CPU
parallel.offload.activations=cpu train.gradient_checkpointing=mlp | moves what gradient checkpointing | set train.gradient_checkpointing: true | \
    train.gradient_checkpointing=true => no effect on a CPU
--nproc-per-node=2 parallel.offload.base=cpu parallel.pp=2 | `parallel.offload.base` is not available with `parallel.pp` | \
    remove parallel.offload.base, or use parallel.strategy fsdp without parallel.pp | \
    ~parallel.offload.base ; parallel.strategy=fsdp ~parallel.pp => no effect on a CPU
--nproc-per-node=2 parallel.offload.base=cpu parallel.strategy=tensor | `parallel.offload.base` is not available | \
    remove parallel.offload.base, or use parallel.strategy fsdp | ~parallel.offload.base ; parallel.strategy=fsdp => no effect on a CPU
parallel.device_map=auto parallel.offload.base=cpu | `parallel.offload.base` is not available | \
    remove parallel.offload.base, or use parallel.strategy fsdp without parallel.device_map | \
    ~parallel.offload.base ; parallel.strategy=fsdp ~parallel.device_map --nproc-per-node=2 => no effect on a CPU
tuning.mode=full --nproc-per-node=2 parallel.offload.params=cpu parallel.strategy=zero1 | keeps all weights on each device | \
    use parallel.strategy fsdp, or remove parallel.offload.params | parallel.strategy=fsdp => no effect on a CPU ; ~parallel.offload.params
tuning.mode=full --nproc-per-node=2 parallel.offload.params=cpu parallel.tp=2 | is not available with | \
    use parallel.strategy fsdp without parallel.tp, or remove parallel.offload.params | \
    parallel.strategy=fsdp ~parallel.tp => no effect on a CPU ; ~parallel.offload.params
parallel.offload.params=cpu | saves little memory with tuning.mode lora | parallel.offload.base keeps frozen weights in host memory | \
    ~parallel.offload.params parallel.offload.base=cpu => no effect on a CPU
parallel.device_map=auto parallel.strategy=fsdp | is set, but `parallel.strategy` is fsdp | remove one of them | \
    ~parallel.strategy ; ~parallel.device_map --nproc-per-node=2
train.warmup_ratio=0.1 train.warmup_steps=3 | are both set | keep one of them | ~train.warmup_ratio ; ~train.warmup_steps
train.predict_with_generate=true data.val=val.jsonl train.generation_num_beams=4 | answers are generated without beam search | \
    remove it: answers are greedy | ~train.generation_num_beams
train.objective=dpo data.train=pairs.jsonl data.val=pairs2.jsonl train.predict_with_generate=true | dpo reads no such answers | \
    remove predict_with_generate | ~train.predict_with_generate
train.objective=dpo data.train=pairs.jsonl data.val_split=1 train.eval_token_accuracy=true | is for objective sft | remove eval_token_accuracy | \
    ~train.eval_token_accuracy
data.val=val.jsonl train.metric_for_best_model=eval_other_loss | but with one validation set there is only eval_loss | use eval_loss | \
    train.metric_for_best_model=eval_loss
data.val=[val.jsonl,other.jsonl] train.metric_for_best_model=eval_third_loss | but no validation set has this name | \
    use eval_loss or eval_val_loss or eval_other_loss | train.metric_for_best_model=eval_loss ; train.metric_for_best_model=eval_val_loss
data.val=val.jsonl train.metric_for_best_model=bleu | which is not a metric of an evaluation | use eval_loss | \
    train.metric_for_best_model=eval_loss ; train.metric_for_best_model=eval_rouge_l train.predict_with_generate=true
data.val=val.jsonl train.metric_for_best_model=eval_perplexit | which is not a metric of an evaluation | did you mean `eval_perplexity`? | \
    train.metric_for_best_model=eval_perplexity
data.val=val.jsonl train.metric_for_best_model=eval_rouge_l | which needs answers | set train.predict_with_generate: true | \
    train.predict_with_generate=true
data.val=val.jsonl train.metric_for_best_model=eval_token_accuracy | which is not measured | set train.eval_token_accuracy: true | \
    train.eval_token_accuracy=true
data.format=preference | is preference, but `train.objective` is sft | \
    for pairs of answers set train.objective to dpo, ipo, cpo, simpo, orpo or reward; for other records remove format | train.objective=dpo data.train=pairs.jsonl ; ~data.format
data.format=messages train.objective=dpo data.train=pairs.jsonl | but `train.objective` is dpo | \
    remove format: dpo reads records with "chosen" and "rejected" | ~data.format
data.train="[{path: pairs.jsonl, format: messages}]" train.objective=dpo | but `train.objective` is dpo | remove format | \
    data.train="[{path: pairs.jsonl}]"
train.objective=dpo train.reference=base data.train=pairs.jsonl tuning.mode=full | is the base model with the adapter switched off | \
    set train.reference to start | train.reference=start
train.objective=dpo train.reference=base data.train=pairs.jsonl tuning.lora.init=pissa | moves a part of the base model | \
    set train.reference to start | train.reference=start
train.objective=dpo train.reference=base data.train=pairs.jsonl tuning.lora.modules_to_save=[lm_head] | there is no reference without them | \
    set train.reference to start | train.reference=start
train.objective=dpo train.reference=first data.train=pairs.jsonl | there is no such file | \
    write start, base, or the path of a model or an adapter | train.reference=start ; train.reference=base
train.objective=dpo data.train=pairs.jsonl train.neftune_noise_alpha=5 | the noise of | remove neftune_noise_alpha | ~train.neftune_noise_alpha
train.objective=dpo data.train=pairs.jsonl train.router_aux_loss_coef=0.1 | has no load-balancing term | set train.router_aux_loss_coef to 0 | \
    train.router_aux_loss_coef=0
train.objective=dpo data.train=pairs.jsonl data.thinking=split | makes several examples of one conversation | \
    set data.thinking to template or keep | data.thinking=template ; data.thinking=keep
data.streaming=true ~train.max_steps | is set, but `train.max_steps` is not | add, for example, max_steps: 1000 below train | train.max_steps=1000
data.streaming=true data.val=val.jsonl train.eval_strategy=epoch | but streamed data have no epochs | set it to steps, with eval_steps | \
    train.eval_strategy=steps train.eval_steps=2
data.streaming=true data.val_split=0.25 | cannot be used with streamed data | remove val_split, and set data.val to a validation file | \
    data.val=val.jsonl ~data.val_split
data.streaming=true data.group_by_length=true data.packing=false | needs the lengths of all examples | remove one of them | \
    ~data.group_by_length ; ~data.streaming
data.fields="{question: prompt}" | has the unknown field `question` | write {field: column} | \
    data.fields="{prompt: question, completion: answer}" data.train=qa.jsonl
data.fields="{prompt: [1]}" | the value must be the name of a column | write, for example, {prompt: question} | \
    data.fields="{prompt: question, completion: answer}" data.train=qa.jsonl
data.fields="{roles: [1]}" | the value must be a map of roles | write, for example, roles: {human: user, gpt: assistant} | \
    data.fields="{roles: {human: user, gpt: assistant}}"
tuning.mode=full tuning.quant=nf4 | but quantised weights cannot be trained | set tuning.mode to qlora, or quant to none | \
    tuning.mode=qlora ; tuning.quant=none
tuning.mode=full tuning.quant=stored | but quantised weights cannot be trained | set tuning.mode to qlora, or quant to none | \
    tuning.mode=qlora => hold no quantised matrices ; tuning.quant=none
tuning.mode=full tuning.quant=gguf model.name=llama3-gguf/model-Q8_0.gguf | but quantised weights cannot be trained | \
    set tuning.mode to qlora, or quant to none | tuning.mode=qlora ; tuning.quant=none
tuning.mode=qlora tuning.quant=none | is qlora, but `tuning.quant` is none | remove quant, or set tuning.mode to lora | \
    ~tuning.quant ; tuning.mode=lora
tuning.mode=qlora tuning.quant_block_size=48 | `tuning.quant_block_size` is 48 | write 32, 64 | \
    tuning.quant_block_size=64 ; tuning.quant_block_size=32 ; tuning.quant_block_size=4096
tuning.lora.target_modules=[] | is empty | use all-linear | tuning.lora.target_modules=all-linear
tuning.lora.target_modules="q_proj,v_proj" | is not the name of a module | write a list: [q_proj, v_proj] | \
    tuning.lora.target_modules="[q_proj, v_proj]"
tuning.lora.dora=true tuning.lora.target_parameters=[mlp.experts.down_proj] | cannot be used with `target_parameters` | remove one of them | \
    ~tuning.lora.target_parameters ; ~tuning.lora.dora model.name=mixture
tuning.lora.init=pissa tuning.lora.target_parameters=[mlp.experts.down_proj] | cannot be used with `target_parameters` | remove one of them | \
    ~tuning.lora.target_parameters ; ~tuning.lora.init model.name=mixture
tuning.mode=partial tuning.trainable="['(']" | which is not a regular expression | write | tuning.trainable=[o_proj]
tuning.lora.rank_pattern="{q_proj: 0}" | is 0 for `q_proj` | write a whole number from 1 to 65536 | tuning.lora.rank_pattern="{q_proj: 1}"
tuning.lora.alpha_pattern="{q_proj: 0}" | is 0 for `q_proj` | write a number above 0 | tuning.lora.alpha_pattern="{q_proj: 0.5}"
tuning.lora.rank_pattern="{'(': 4}" | which is not a regular expression | write the name of a module, or its end: o_proj | \
    tuning.lora.rank_pattern="{o_proj: 4}"
tuning.lora.rank_pattern="{q_prj: 4}" | matches no adapter | adapters are named like | \
    tuning.lora.rank_pattern="{q_proj: 4}" ; tuning.lora.rank_pattern="{model.layers.0.self_attn.q_proj: 4}"
--nproc-per-node=2 train.batch_size=4 train.global_batch_size=30 | is not a multiple of | set train.global_batch_size to 24 or 32 | \
    train.global_batch_size=24 ; train.global_batch_size=32
train.batch_size=4 train.grad_accum=2 train.global_batch_size=30 | is not train.batch_size 4 | \
    set train.global_batch_size to 8 or auto, or train.batch_size to 15 | \
    train.global_batch_size=8 ; train.global_batch_size=auto ; train.batch_size=15
train.grad_accum=4 train.global_batch_size=30 | is not a multiple of | set train.global_batch_size to 28 or 32 | \
    train.global_batch_size=28 ; train.global_batch_size=32
--nproc-per-node=2 parallel.strategy=tensor train.optimizer=adamw_8bit | quantises its state in blocks | use train.optimizer adamw | \
    train.optimizer=adamw
--nproc-per-node=2 parallel.strategy=fsdp train.optimizer=muon tuning.mode=full | computes each update from a whole matrix | \
    use parallel.strategy ddp, or another optimizer: adamw, adamw_8bit, lion or sgd | \
    parallel.strategy=ddp ; train.optimizer=adamw ; train.optimizer=adamw_8bit ; train.optimizer=lion ; train.optimizer=sgd
--nproc-per-node=2 parallel.tp=2 train.optimizer=muon tuning.mode=full | computes each update from a whole matrix | \
    use parallel.strategy ddp without parallel.tp, or another optimizer: adamw, lion or sgd | \
    parallel.strategy=ddp ~parallel.tp ; train.optimizer=adamw ; train.optimizer=lion ; train.optimizer=sgd
--nproc-per-node=2 parallel.dp_shard=2 train.optimizer=adafactor tuning.mode=full | computes each update from a whole matrix | \
    use parallel.strategy ddp without parallel.dp_shard | parallel.strategy=ddp ~parallel.dp_shard ; train.optimizer=adamw
--nproc-per-node=2 parallel.strategy=single | is single, but the run has 2 processes | remove parallel.strategy, or give --nproc-per-node 1 | \
    ~parallel.strategy ; --nproc-per-node=1
--nproc-per-node=3 parallel.pp=2 | does not divide the 3 processes | set parallel.pp to 3, the processes of one pipeline; or start 2 or 4 processes | \
    parallel.pp=3 ; --nproc-per-node=2 ; --nproc-per-node=4
--nproc-per-node=3 parallel.tp=2 | does not divide the 3 processes | \
    use, without parallel.tp, parallel.strategy fsdp or pipeline, or start a multiple of 2 processes | \
    parallel.strategy=fsdp ~parallel.tp ; parallel.strategy=pipeline ~parallel.tp ; --nproc-per-node=2
--nproc-per-node=3 parallel.dp_shard=2 | does not divide the 3 processes | \
    set parallel.dp_shard to 3, the processes that share one copy of the model; or start 2 or 4 processes | \
    parallel.dp_shard=3 ; --nproc-per-node=2 ; --nproc-per-node=4
--nproc-per-node=2 parallel.device_map=auto | is one process with several GPUs | \
    start one process, without --nproc-per-node and --nnodes; or use, without parallel.device_map, parallel.strategy pipeline or fsdp | \
    ~--nproc-per-node ; parallel.strategy=pipeline ~parallel.device_map ; parallel.strategy=fsdp ~parallel.device_map
parallel.backend=nccl --nproc-per-node=2 | NCCL needs GPUs | use gloo or auto | parallel.backend=gloo ; parallel.backend=auto
--nproc-per-node=4 parallel.tp=4 | cannot be divided by 4 | \
    set parallel.tp to 2, or use, without parallel.tp, parallel.strategy fsdp or pipeline | \
    parallel.tp=2 ; parallel.strategy=fsdp ~parallel.tp ; parallel.strategy=pipeline ~parallel.tp
--nproc-per-node=2 parallel.tp=2 tuning.mode=qlora | its format stores blocks of 64 values | \
    use, without parallel.tp, parallel.strategy fsdp or pipeline | parallel.strategy=fsdp ~parallel.tp ; parallel.strategy=pipeline ~parallel.tp
--nproc-per-node=8 parallel.pp=8 | too few for 8 stages | set parallel.pp to at most 4, or use parallel.strategy fsdp without parallel.pp | \
    parallel.pp=4 ; parallel.strategy=fsdp ~parallel.pp
tuning.lora.target_modules=[q_prj] | no linear layer is named `q_prj` | did you mean `q_proj`? | \
    tuning.lora.target_modules=[q_proj] ; tuning.lora.target_modules=all-linear ; tuning.lora.target_modules=[lm_head] \
    ; tuning.lora.target_modules=[embed_tokens]
tuning.lora.modules_to_save=[lm_hed] | no module's name ends in | did you mean `lm_head` | tuning.lora.modules_to_save=[lm_head]
tuning.lora.modules_to_save=[zzz] | no module's name ends in | examples of valid names: lm_head, embed_tokens, norm | \
    tuning.lora.modules_to_save=[lm_head] ; tuning.lora.modules_to_save=[embed_tokens] ; tuning.lora.modules_to_save=[norm]
tuning.lora.target_parameters=[mlp.experts.down_proj] | no parameter of the experts is named | the model has no experts: remove it | \
    ~tuning.lora.target_parameters
model.name=mixture tuning.lora.target_parameters=[experts.dwn_proj] | no parameter of the experts is named | \
    available in every layer with experts | tuning.lora.target_parameters=[mlp.experts.down_proj]
model.name=mixture tuning.lora.target_parameters=[mlp.experts.down_proj] tuning.lora.dropout=0.1 | do not support dropout | \
    set tuning.lora.dropout to 0, or remove tuning.lora.target_parameters | tuning.lora.dropout=0 ; ~tuning.lora.target_parameters
model.name=mixture tuning.lora.modules_to_save=[experts] | cannot be trained in full together with adapters | \
    adapt experts with tuning.lora.target_parameters, or use tuning.mode: partial | \
    ~tuning.lora.modules_to_save tuning.lora.target_parameters=[mlp.experts.down_proj] \
    ; ~tuning.lora.modules_to_save tuning.mode=partial tuning.trainable=[experts]
model.name=mixture tuning.lora.target_modules=[gate] | names the routers | \
    remove gate from tuning.lora.target_modules, and set tuning.lora.target_parameters: [mlp.gate.weight] | \
    tuning.lora.target_modules=[] tuning.lora.target_parameters=[mlp.gate.weight]
model.name=mixture tuning.lora.target_modules=[down_proj] | which are not linear layers | \
    remove down_proj from tuning.lora.target_modules, and set tuning.lora.target_parameters: [mlp.experts.gate_up_proj, mlp.experts.down_proj] | \
    tuning.lora.target_modules=[] tuning.lora.target_parameters=[mlp.experts.gate_up_proj,mlp.experts.down_proj] \
    ; ~tuning.lora.target_modules tuning.lora.target_parameters=[mlp.experts.gate_up_proj,mlp.experts.down_proj]
train.router_aux_loss_coef=0.1 | the model has no experts | remove it | ~train.router_aux_loss_coef
model.name=mixture --nproc-per-node=2 parallel.pp=2 train.router_aux_loss_coef=0.1 | counts over all layers, and a pipeline divides them | \
    set train.router_aux_loss_coef: 0, or use parallel.strategy fsdp without parallel.pp | \
    train.router_aux_loss_coef=0 ; parallel.strategy=fsdp ~parallel.pp
tuning.lora.init=pissa tuning.lora.target_modules=[embed_tokens,q_proj] | PiSSA does not support | \
    remove embed_tokens from tuning.lora.target_modules, or set tuning.lora.init to default | \
    tuning.lora.target_modules=[q_proj] ; tuning.lora.init=default
tuning.lora.init=pissa tuning.lora.target_modules=[lm_head,q_proj] | PiSSA does not support | remove lm_head from | \
    tuning.lora.target_modules=[q_proj] ; tuning.lora.init=default
tuning.lora.init=pissa model.name=llama3-gguf/model-Q8_0.gguf | a run cannot write ggml's blocks | \
    set tuning.quant to nf4 or none, or tuning.lora.init to default | tuning.quant=nf4 ; tuning.quant=none ; tuning.lora.init=default
tuning.quant=stored | hold no quantised matrices | remove quant, or name a quantised model | ~tuning.quant ; model.name=bnb-nf4 data.train=texts.jsonl
tuning.quant=gguf | but the model has no such blocks | name a quantised .gguf file, or remove quant | \
    model.name=llama3-gguf/model-Q8_0.gguf ; ~tuning.quant
tuning.quant=mxfp4 | but the model has no such blocks | name a model whose experts are in MXFP4, or remove quant | ~tuning.quant
tuning.mode=qlora tuning.skip_modules=[lm_hed] | no module of the model is named | use the model's names of modules: down_proj or layers.0.mlp | \
    tuning.skip_modules=[down_proj] ; tuning.skip_modules=[layers.0.mlp]
tuning.mode=partial tuning.trainable=[laers] | matches no parameter | parameters are named like | tuning.trainable=[layers]
parallel.device_map="{model.layers.0.mlp: 0}" | a part of a layer | name the whole layer | \
    parallel.device_map="{model.embed_tokens: 'cpu:0', model.layers.0: 'cpu:0', model.layers.1: 'cpu:1', model.norm: 'cpu:1', lm_head: 'cpu:1'}" \
    ; parallel.device_map=auto
parallel.device_map="{model.layers.0: 0, model.layers.1: 0}" | has no device for | name them in the map, or use parallel.device_map: auto | \
    parallel.device_map=auto
parallel.device_map="{'': 0}" | names GPU 0, and this run has none | on a CPU remove it | ~parallel.device_map
parallel.device_map="{model.embed_toks: 'cpu:0', model.layers: 'cpu:0', model.norm: 'cpu:0', lm_head: 'cpu:0'}" | which the model does not have | \
    did you mean `model.embed_tokens`? | \
    parallel.device_map="{model.embed_tokens: 'cpu:0', model.layers: 'cpu:0', model.norm: 'cpu:0', lm_head: 'cpu:0'}"
parallel.device_map="{model.embed_tokens: 'cpu:0', model.layers.0: 'cpu:1', model.layers.1: 'cpu:0', model.norm: 'cpu:0', lm_head: 'cpu:0'}" | \
    returns to device | give each device one run of layers | \
    parallel.device_map="{model.embed_tokens: 'cpu:0', model.layers.0: 'cpu:0', model.layers.1: 'cpu:1', model.norm: 'cpu:1', lm_head: 'cpu:1'}"
"""
TURN = "{{ '<|turn|>' + m.role + '\\n' }}"
ANSWER_OPENS = "{% if add_generation_prompt %}{{ '<|turn|>assistant\\n' }}{% endif %}"
THOUGHTS = "{% if m.reasoning_content and (loop.last or preserve_thinking) %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}"
KEEPS_LAST = "{% for m in messages %}" + TURN + THOUGHTS + "{{ m.content + '<|end|>\\n' }}{% endfor %}" + ANSWER_OPENS
EMPTY_THINKING = ("{% for m in messages %}" + TURN + "{% if m.role == 'assistant' %}"
                  "{{ '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n' }}{% endif %}"
                  "{{ m.content + '<|end|>\\n' }}{% endfor %}" + ANSWER_OPENS)
SKIPS = "{% for m in messages if m.content != 'skip' %}" + TURN + "{{ m.content + '<|end|>\\n' }}{% endfor %}" + ANSWER_OPENS
REASONED = {"messages": [USER, ANSWER | {"reasoning_content": "why"}, USER, ANSWER | {"reasoning_content": "how"}]}

# Records (or files by name), settings | message | advice | ways: settings that change, or other records and the change.
RECORDS = [
    ([PAIR] * 4, "", "this is preference data", "set train.objective: dpo", ["train.objective=dpo"]),
    ([PAIR] * 4, "", "this is preference data", "data.fields: {prompt: prompt, completion: chosen}",
     ["data.fields='{prompt: prompt, completion: chosen}'"]),
    ([{"chosen": [USER, ANSWER], "rejected": [USER, chat(answer="no")["messages"][1]]}] * 4, "", "this is preference data",
     "data.fields: {messages: chosen}", ["data.fields='{messages: chosen}'", "train.objective=dpo"]),
    ([{"chosen": "hello there", "rejected": "hello no"}] * 4, "", "this is preference data", "data.fields: {text: chosen}",
     ["data.fields='{text: chosen}'"]),
    ([{"question": "hello", "answer": "hello there"}] * 4, "", "has no known format", "data.fields: {instruction: question, output: answer}",
     ["data.fields='{instruction: question, output: answer}'", "data.fields='{prompt: question, completion: answer}'"]),
    ([{"instruction": "hello", "response": "hello there"}] * 4, "", "has no known format", "data.fields: {output: response}",
     ["data.fields='{output: response}'"]),
    ([{"input_ids": [1, 2, 3], "labels": [1, 2, 3]}] * 4, "", "already tokenized", "give the text", [(GOOD, "")]),
    ([{"body": "hello"}] * 4, "", "has no known format", "data.fields: {text: body}", ["data.fields='{text: body}'"]),
    ([{"a": "hello", "b": "hello there"}] * 4, "", "has no known format", "{prompt: COLUMN, completion: COLUMN}",
     ["data.fields='{instruction: a, output: b}'", "data.fields='{prompt: a, completion: b}'"]),
    ({"train.csv": "question;answer\nhello;hello there\n"}, "data.train=train.csv", "has no known format", ".csv files are read with commas",
     [({"train.csv": "prompt,completion\nhello,hello there\n"}, ""), ({"train.tsv": "prompt\tcompletion\nhello\thi\n"}, "data.train=train.tsv")]),
    ([*GOOD, {"question": "hello"}], "", "requires (its keys", "data.bad_records: skip leaves this record out",
     ["data.bad_records=skip => 1 bad record left out", (GOOD, "")]),
    ([*GOOD, chat(1)], "", "content must be a string", 'write "content": "…"', [([*GOOD, chat("1")], "")]),
    ([*GOOD, {"messages": [USER, {"role": "assistant", "contents": "hi"}]}], "", 'has no "content"', 'call it "content"',
     [([*GOOD, chat(answer="hi")], "")]),
    ([{"messages": [{"role": "user", "contents": "hello"}, {"role": "assistant", "contents": "hi"}]}] * 3, "", 'has no "content"',
     "data.fields: {content: contents}", ["data.fields='{content: contents}'"]),
    ([{"messages": [{"speaker": "user", "text": "hello"}, {"speaker": "assistant", "text": "hi"}]}] * 3, "", "is not a message",
     "other keys are renamed by data.fields: {role: …, content: …}", ["data.fields='{role: speaker, content: text}'"]),
    ([{"messages": shared()["conversations"]}] * 3, "data.format=messages", "is not a message",
     "data.format: sharegpt with data.fields: {messages: messages}", ["data.format=sharegpt data.fields='{messages: messages}'"]),
    ([*GOOD, chat(train="yes")], "", "train must be true or false", "write true or false without quotes",
     [([*GOOD, chat(train=True)], ""), ([*GOOD, chat(train=False)], "=> no token has a label")]),
    ([*GOOD, chat(weight=-1)], "", "weight must be a number from 0 to 1000", "write 1, 0.5 for half the weight, or 0 for a turn without labels",
     [([*GOOD, chat(weight=1)], ""), ([*GOOD, {"messages": [USER, ANSWER | {"weight": 0}, USER, ANSWER]}], "")]),
    ([*GOOD, chat(answer=None)], "", "content is null", "write the text, or remove the record", [(GOOD, ""), ([*GOOD, chat()], "")]),
    ([*GOOD, {"messages": 3}], "", "must be a list of messages", 'write [{"role": "user", "content": "…"}, …]', [([*GOOD, chat()], "")]),
    ([*GOOD, {"messages": []}], "", "is empty", "remove the record", [(GOOD, "")]),
    ([*GOOD, chat() | {"tools": {"a": 1}}], "", '"tools" must be a list', "or null", [([*GOOD, chat() | {"tools": None}], "")]),
    ([*GOOD, chat() | {"chat_template_kwargs": [1]}], "", "must be an object", 'write {"name": value}, or null',
     [([*GOOD, chat() | {"chat_template_kwargs": kwargs}], "") for kwargs in (None, {"name": 1})]),
    ([{"conversations": [{"from": "human", "value": "hello"}, {"from": "GPT", "value": "hi"}]}] * 3, "", "which is not a known role",
     "data.fields: {roles: {GPT: assistant}}", ["data.fields='{roles: {GPT: assistant}}'"]),
    ([{"conversations": [{"from": "Human", "value": "hello"}, {"from": "gpt", "value": "hi"}]}] * 3, "", "which is not a known role",
     "data.fields: {roles: {Human: user}}", ["data.fields='{roles: {Human: user}}'"]),
    ([{"conversations": [{"from": "narrator x", "value": "hello"}, {"from": "gpt", "value": "hi"}]}] * 3, "", "which is not a known role",
     "data.fields: {roles: {'narrator x': ROLE}}, where ROLE is user, assistant, system or tool",
     [f"data.fields=\"{{roles: {{'narrator x': {role}}}}}\"" for role in ("user", "tool")]),
    ([{"conversations": [{"from": "it's", "value": "hello"}, {"from": "gpt", "value": "hi"}]}] * 3, "", "which is not a known role",
     "data.fields: {roles: {'it''s': ROLE}}", ["data.fields=\"{roles: {'it''s': user}}\""]),
    ([{"conversations": 3}] * 3, "", "must be a list", 'write [{"from": "human", "value": "…"}, …]', [([shared()] * 3, "")]),
    ([{"conversations": [{"from": "human"}]}] * 3, "", 'needs strings "from" and "value"', 'write {"from": "human", "value": "…"}',
     [([shared()] * 3, "")]),
    ([*[{"prompt": "hello", "completion": "a"}] * 3, {"prompt": "hello", "completion": None}], "", "must be two strings or two lists",
     "leave the record out where one is missing",
     ["data.bad_records=skip => 1 bad record left out", ([{"prompt": "hello", "completion": "a"}] * 4, "")]),
    ([*[PAIR] * 3, PAIR | {"chosen": None}], "train.objective=dpo", "must be two strings or two lists", "leave the record out",
     ["data.bad_records=skip => 1 bad record left out", ([PAIR] * 3, "")]),
    ([*[PAIR] * 3, {"chosen": "", "rejected": "no"}], "train.objective=dpo", "is empty, and there is no", 'or give a "prompt"',
     [([PAIR] * 3, ""), ([*[PAIR] * 3, PAIR | {"chosen": ""}], "=> answers are empty (1)")]),
    ([{"chosen": "hello", "rejected": "no", "q": "hey"}] * 3, "train.objective=dpo", "do not begin with the same text",
     "data.fields: {prompt: COLUMN}", [f"data.fields='{{prompt: q}}' {BARE}", "data.fields='{instruction: q}'"]),
    ([{"chosen": [USER, ANSWER], "rejected": [{"role": "user", "content": "x"}, ANSWER]}] * 3, "train.objective=dpo",
     "do not begin with the same messages", 'give a "prompt", a list of messages', [([PAIR] * 3, "")]),
    (GOOD, "train.objective=dpo", "which train.objective dpo needs", "or set train.objective: sft", ["train.objective=sft"]),
    ([{"q": "hello", "good": "hello there", "bad": "no"}] * 3, "train.objective=dpo", "which train.objective dpo needs",
     "data.fields: {prompt: COLUMN, chosen: COLUMN, rejected: COLUMN}", [f"data.fields='{{prompt: q, chosen: good, rejected: bad}}' {BARE}"]),
    ([STRINGS | {"rejected": None}] * 3, "train.objective=dpo", 'has "chosen" but no value for "rejected"', "leave the record out", [([PAIR] * 3, "")]),
    ([{"prompt": "hello", "chosen": "hi", "bad": "no"}] * 3, "train.objective=dpo", 'has "chosen" but no value for "rejected"',
     "data.fields: {rejected: COLUMN}", [f"data.fields='{{rejected: bad}}' {BARE}"]),
    ([PAIR | {"prompt": "hello"}] * 3, "train.objective=dpo", 'a "prompt" (string) is not read beside lists of messages',
     '"prompt": [{"role": "user", "content": "…"}]', [([PAIR] * 3, "")]),
    ([{"prompt": shared()["conversations"][:1], "completion": shared()["conversations"][1:]}] * 3, "", "is not a message",
     "data.fields: {role: from, content: value, roles: {human: user, gpt: assistant}}",
     ["data.fields='{role: from, content: value, roles: {human: user, gpt: assistant}}'"]),
    ([{"prompt": "hello", "completion": "hi"}] * 3, "train.objective=kto", "which train.objective kto needs", 'write "label": true or false',
     [(JUDGED, ""), "train.objective=sft"]),
    ([{"prompt": "hello", "completion": answer, "good": good} for answer, good in (("hi", 1), ("hm", 0))], "train.objective=kto",
     "which train.objective kto needs", "data.fields: {label: COLUMN}", [f"data.fields='{{label: good}}' {BARE}"]),
    (JUDGED, "train.objective=dpo", "which train.objective dpo needs", "set train.objective: kto, which reads one answer and its label",
     ["train.objective=kto"]),
    ([*JUDGED, JUDGED[0] | {"label": "maybe"}], "train.objective=kto", '"label" must be true or false', "write true for a desirable answer",
     ["data.bad_records=skip => 1 bad record left out", (JUDGED, "")]),
    ([*JUDGED, {"text": "hello", "label": True}], "train.objective=kto", 'has no "prompt"', "correct the record", [(JUDGED, "")]),
    ([{"text": "hello", "label": True}] * 3, "train.objective=kto", "no prompt and answer that it judges",
     "data.fields: {prompt: COLUMN, completion: COLUMN}", [(JUDGED, "")]),
    ([chat() | {"label": False}, {"messages": [USER, ANSWER, USER], "label": True}], "train.objective=kto", "ends with a turn of the role",
     "end it with the assistant turn that is judged", [([chat() | {"label": label} for label in (False, True)], "")]),
    ([chat() | {"label": False}, {"messages": [ANSWER], "label": True}], "train.objective=kto", "nothing before the answer",
     "write the user's turn before it", [([chat() | {"label": label} for label in (False, True)], "")]),
    ({"train.jsonl": b'{"text": "caf\xe9"}\n'}, "", "invalid UTF-8", "iconv -f latin1 -t utf8", [([{"text": "café"}], "")]),
    ({"train.jsonl": '{"text": "a",\n"weight": 1}\n'}, "", "malformed JSON", "jq -c . in.json > out.jsonl", [([{"text": "a", "weight": 1}], "")]),
    ({"train.jsonl": '{"text": "a"}\n{"text": "b",'}, "", "malformed JSON", "remove its last line", [([{"text": "a"}], "")]),
    ({"train.jsonl": '{"text": "a"}\n{"text": "b\n{"text": "c"}\n'}, "", "malformed JSON", "complete it, or remove its line",
     [([{"text": "a"}, {"text": "b"}, {"text": "c"}], ""), ([{"text": "a"}, {"text": "c"}], ""), "data.bad_records=skip => 1 bad record left out"]),
    ({"train.jsonl": "hello there\n"}, "", "malformed JSON", "jq -Rc '{text: .}' in.txt > out.jsonl", [([{"text": "hello there"}], "")]),
    ({"train.jsonl": '{"text": "a", "x": NaN}\n'}, "", "malformed JSON", "use null", [([{"text": "a", "x": None}], "")]),
    ({"train.json": '[{"text": "a"}'}, "data.train=train.json", "is not closed", "the file is truncated: write it again",
     [({"train.json": '[{"text": "a"}]'}, "")]),
    ({"train.json": '["a", "b"]'}, "data.train=train.json", "has an element of type string", "jq -c '.[] | {text: .}' in.json > out.jsonl",
     [([{"text": "a"}, {"text": "b"}], "data.train=train.jsonl")]),
    ({"train.jsonl": ""}, "", "has no records", "write one JSON object per line", [(GOOD, "")]),
    ({"train.txt": "hello there\n"}, "data.train=train.txt", "this is plain text", "set data.format: text", ["data.format=text"]),
    ({"a.jsonl": GOOD, "b.jsonl": [{"instruction": "hello", "output": "hi"}]}, "data.train=?.jsonl", "must have the same format",
     "data.train: [a.jsonl, b.jsonl]", ["data.train=[a.jsonl,b.jsonl]"]),
    (GOOD, "data.fields='{messages: chat}'", "which data.fields maps to", "correct data.fields, or the record",
     ["~data.fields", "data.fields='{messages: messages}'"]),
    ([{"q": "a", "b": "c"}] * 3, "data.fields='{prompt: q}'", "is neither mapped nor a column", "add completion: COLUMN to data.fields",
     ["data.fields='{prompt: q, completion: b}'"]),
    ([{"messages": "[1"}] * 3, "", "is a string that is not a JSON list", "write the list as JSON (json.dumps)", [(GOOD, "")]),
    ([{"prompt": "hello", "messages": "hi"}] * 3, "", "is a string that is not a JSON list", "data.fields: {prompt: …, completion: …}",
     ["data.fields='{prompt: prompt, completion: messages}'"]),
    (GOOD, "model.max_seq_len=20", "every record is longer", "raise model.max_seq_len", ["model.max_seq_len=64"]),
    ([{"text": "hello there no " * 20}] * 3, "model.max_seq_len=20 data.too_long=drop", "every record is longer",
     "or set data.too_long: truncate", ["model.max_seq_len=128", "data.too_long=truncate => train.jsonl:1"]),
    (GOOD, "model.max_seq_len=20 data.loss_on=all", "every record is longer", "or set data.too_long: truncate",
     ["data.too_long=truncate => train.jsonl:1"]),
    (GOOD, "model.max_seq_len=4096", "more than the model's", "lower model.max_seq_len to 128", ["model.max_seq_len=128"]),
    ([{"text": "<|begin|>hello"}] * 3, "model.name=llama3-gguf", "begins with", "the tokenizer adds one; remove it from the text",
     [([{"text": "hello"}] * 3, "")]),
    ({"t.jinja": "{% for m in messages %}{{ m.content + '\\n' }}{% endfor %}", "train.jsonl": GOOD}, "model.chat_template=t.jinja",
     "no example trains on an end-of-turn token", "remove model.chat_template if the model has its own", ["~model.chat_template"]),
    (GOOD, "model.name=bnb-nf4", "the model has no chat template", "a built-in template whose end token the tokenizer has: llama2, mistral",
     ["model.chat_template=llama2", "model.chat_template=mistral"]),
    ([{"messages": [USER]}] * 3, "", "no token of any record has a label", "check that conversations have assistant turns", [(GOOD, "")]),
    ([{"messages": [USER, {"role": "bot", "content": "hi"}]}] * 3, "", "no token of any record has a label",
     "rename it by data.fields: {roles: {bot: assistant}}", ["data.fields='{roles: {bot: assistant}}'"]),
    ([*GOOD, {"messages": [USER, {"role": "bot", "content": "hi"}, USER, ANSWER]}], "", "the role `bot`", "data.fields: {roles: {bot: assistant}}",
     ["data.fields='{roles: {bot: assistant}}'"]),
    ([*GOOD, chat(answer="")], "", "answers are empty (1)", 'give the messages of such turns "train": false',
     [(GOOD, ""), ([*GOOD, {"messages": [USER, {"role": "assistant", "content": "", "train": False}, USER, ANSWER]}], "")]),
    ([*[PAIR] * 3, PAIR | {"chosen": ""}], "train.objective=dpo", "answers are empty (1)", "remove such pairs", [([PAIR] * 3, "")]),
    ([*[PAIR] * 3, PAIR | {"rejected": PAIR["chosen"]}], "train.objective=dpo", "pairs have the same", "leave them out", [([PAIR] * 3, "")]),
    ([STRINGS] * 3, "train.objective=dpo", "without the model's chat template", "data.fields: {instruction: COLUMN} puts them into the template",
     ["data.fields='{instruction: prompt}'", ([PAIR] * 3, "")]),
    ([{"prompt": "hello", "completion": answer, "label": label} for answer, label in (("hi", True), ("hm", False))], "train.objective=kto",
     "without the model's chat template", "data.fields: {instruction: COLUMN, output: COLUMN} puts them into the template",
     ["data.fields='{instruction: prompt, output: completion}'", (JUDGED, "")]),
    ([{key: json.dumps(value) for key, value in PAIR.items()}] * 3, "train.objective=dpo", "texts begin like lists of messages",
     "write lists of messages", [([PAIR] * 3, "")]),
    ({"train.csv": "prompt,chosen,rejected\n" + '"' + '","'.join(str(value) for value in PAIR.values()) + '"\n'}, "data.train=train.csv train.objective=dpo",
     "texts begin like lists of messages", "in a CSV file each of the record's columns as JSON",
     [({"train.csv": "prompt,chosen,rejected\n" + ",".join('"' + json.dumps(value).replace('"', '""') + '"' for value in PAIR.values()) + "\n"}, "")]),
    ([STRINGS | {"input": "there"}] * 3, "train.objective=dpo", '"input", which is not read', "data.fields: {instruction: COLUMN} names the column",
     ["data.fields='{instruction: prompt}'"]),
    ([*GOOD, chat() | {"history": [["a", "b"]]}], "", '"history", which is not read', 'earlier turns are read from "messages"',
     [([*GOOD, {"messages": [USER, ANSWER, USER, ANSWER]}], "")]),
    ([*GOOD, chat() | {"system": "be"}], "", '"system", which is not read', "write it as a message of the role system",
     [([*GOOD, {"messages": [{"role": "system", "content": "be"}, USER, ANSWER]}], "")]),
    ([{"prompt": "hello", "completion": "hi", "system": "be"}] * 3, "", '"system", which is not read', "write it as a message of the role system",
     [([{"prompt": [{"role": "system", "content": "be"}, USER], "completion": [ANSWER]}] * 3, "")]),
    ([*GOOD, chat() | {"functions": [{"name": "f"}]}], "", '"functions", which is not read', 'rename it to "tools"',
     [([*GOOD, chat() | {"tools": [{"name": "f"}]}], "=> the chat template omits them")]),
    ([*[{"prompt": "hello", "completion": "hi", "label": True}] * 3, {"prompt": "hello", "completion": "hm", "label": False}], "",
     '"label", which is not read', "remove these records", [([{"prompt": "hello", "completion": "hi", "label": True}] * 3, "")]),
    (JUDGED, "", '"label", which is not read', "train.objective: kto reads it", ["train.objective=kto"]),
    (JUDGED[:1] * 3, "train.objective=kto", "all 3 examples are desirable", "add undesirable ones", [(JUDGED, "")]),
    ([{"messages": [USER, ANSWER | {"train": False}], "label": label} for label in (True, False)], "train.objective=kto",
     'turns with "train", which is not read', "the whole answers are judged: remove it", [([chat() | {"label": label} for label in (True, False)], "")]),
    ([chat() | {"chosen": "a", "rejected": "b"}] * 3, "", '"chosen", which is not read', "train.objective: dpo trains on them", []),
    ([*GOOD, chat() | {"image": "a.png"}], "", '"image", which is not read', "the model reads text alone", [(GOOD, "")]),
    ([{"conversations": [{"from": "system", "value": "be"}, *shared()["conversations"]], "system": "be"}] * 3, "",
     'have a "system" and a turn of that role', "leave one of them out",
     [([shared(system="be")] * 3, ""), ([{"conversations": [{"from": "system", "value": "be"}, *shared()["conversations"]]}] * 3, "")]),
    ([*GOOD, {"messages": [ANSWER, USER, ANSWER]}], "", "with an assistant turn", "add a user turn before it",
     [([*GOOD, {"messages": [USER, ANSWER, USER, ANSWER]}], "")]),
    ([*GOOD, chat(loss=False)], "", 'turns with "loss", which is not read', '"train": false or "weight": 0 removes the labels of a turn',
     [([*GOOD, {"messages": [USER, ANSWER | flag, USER, ANSWER]}], "") for flag in ({"train": False}, {"weight": 0})]),
    ([{"messages": [USER, ANSWER | {"loss": False}, USER, ANSWER]}] * 3, "", 'turns with "loss", which is not read', "data.fields: {train: KEY}",
     ["data.fields='{train: loss}'"]),
    ([{"messages": [USER, ANSWER | {"loss_weight": 0}, USER, ANSWER]}] * 3, "", 'turns with "loss_weight", which is not read',
     "{weight: KEY} reads another key in the same way", ["data.fields='{weight: loss_weight}'"]),
    ([*GOOD, chat() | {"weight": 0}], "", '"weight", which is not read', "remove those that should not be trained on", [(GOOD, "")]),
    ([PAIR | {"chosen": [ANSWER | {"loss": False}]}] * 3, "train.objective=dpo", 'turns with "loss", which is not read',
     "the whole answers are compared: remove it", [([PAIR] * 3, "")]),
    ([PAIR | {"chosen": [ANSWER | {"train": False}]}] * 3, "train.objective=dpo", 'turns with "train", which is not read',
     "the whole answers are compared: remove it", [([PAIR] * 3, "")]),
    ([*GOOD, chat(mood="x")], "", "which is not read", "write text to train on into the content", [(GOOD, "")]),
    ([*GOOD, chat(reasoning_content="why")], "", "answers have reasoning, but", "or write the reasoning into the content",
     [([*GOOD, chat(answer="<think>why</think>hello")], "")]),
    ([*GOOD, chat("<|end|> x")], "", "messages have control tokens", "take them out", [(GOOD, "")]),
    (GOOD, "data.val_split=3", "leaves nothing to train on", "lower it, or replace it by data.val, a validation file",
     ["data.val_split=1", "~data.val_split data.val=val.jsonl"]),
    (GOOD, "data.val=train.jsonl", "reads the same files", "data.val_split in place of data.val holds out records",
     ["~data.val data.val_split=1"]),
    (GOOD, "data.train='[{path: train.jsonl, split: train}]'", "has no effect", "remove `split`", ["data.train='[{path: train.jsonl}]'"]),
    (GOOD, "data.train='[{path: train.jsonl, name: en}]'", "has no effect", "remove `name`", ["data.train=train.jsonl"]),
    (GOOD, "data.train='[{path: train.jsonl, split: \"train[:2]\"}]'", "has no effect", "for the first 2 records write max_samples: 2",
     ["data.train='[{path: train.jsonl, max_samples: 2}]'"]),
    (GOOD, "data.train='[{path: train.jsonl, split: \"train[1:2]\"}]'", "has no effect",
     "max_samples: N takes the first N records, data.val_split splits some off",
     ["data.train='[{path: train.jsonl, max_samples: 1}]'", "data.train=train.jsonl data.val_split=1"]),
    ({"d/train_sft-00000-of-00001.jsonl": GOOD, "d/train_gen-00000-of-00001.jsonl": GOOD}, "data.train=d", "has several splits that may be `train`",
     "say which as {path: …, split: train_gen}", ["data.train='[{path: d, split: train_gen}]'"]),
    ({"d/train.jsonl": GOOD, "d/test.jsonl": GOOD}, "data.train='[{path: d, split: tset}]'", "has no split `tset`", "it has test, train",
     ["data.train='[{path: d, split: test}]'", "data.train='[{path: d, split: train}]'"]),
    ({"d/train.jsonl": GOOD, "d/test.jsonl": GOOD}, "data.train='[{path: d, split: train+test}]'", "has no split",
     "list the data set once for each split", ["data.train='[{path: d, split: train}, {path: d, split: test}]'"]),
    ({"t.jinja": KEEPS_LAST, "train.jsonl": [REASONED] * 3}, "model.chat_template=t.jinja", " before the last one of a conversation ha",
     "data.thinking: keep asks the template to keep it; data.thinking: split trains on each answer with its reasoning",
     ["data.thinking=keep", "data.thinking=split"]),
    ({"t.jinja": KEEPS_LAST, "train.jsonl": [REASONED] * 3}, "model.chat_template=t.jinja data.loss_on=all",
     " before the last one of a conversation ha", "data.thinking: keep asks the template to keep it", ["data.thinking=keep"]),
    ({"t.jinja": KEEPS_LAST, "train.jsonl": [{"chosen": REASONED["messages"], "rejected": [USER, ANSWER, USER, ANSWER]}] * 3},
     "model.chat_template=t.jinja train.objective=dpo", " before the last one of a conversation ha",
     "data.thinking: keep asks the template to keep it", ["data.thinking=keep"]),
    ({"t.jinja": EMPTY_THINKING, "train.jsonl": GOOD}, "model.chat_template=t.jinja", " with empty reasoning",
     "data.empty_thinking: drop does not train on it; keep trains on it without this warning", ["data.empty_thinking=drop",
     "data.empty_thinking=keep"]),
    ({"t.jinja": EMPTY_THINKING, "train.jsonl": [PAIR | {"rejected": [{"role": "assistant", "content": "no", "reasoning_content": "why"}]}] * 3},
     "model.chat_template=t.jinja train.objective=dpo", " with empty reasoning",
     "data.empty_thinking: drop does not train on it; keep trains on it without this warning", ["data.empty_thinking=drop",
     "data.empty_thinking=keep"]),
    ({"t.jinja": SKIPS, "train.jsonl": [{"messages": [USER, {"role": "assistant", "content": "skip"}, USER, ANSWER]}] * 3},
     "model.chat_template=t.jinja", "the chat template omits messages[1] (assistant)", 'remove the message, or set "train": false',
     [([{"messages": [USER, USER, ANSWER]}] * 3, ""),
      ([{"messages": [USER, {"role": "assistant", "content": "skip", "train": False}, USER, ANSWER]}] * 3, "")]),
]

GENERATE = "generate --model model --device cpu --max-new-tokens 2 --prompt hello"
ANSWERS = "generate --model model --device cpu --max-new-tokens 2 --input train.jsonl --output out.jsonl"
SCORE = "score --model model --device cpu --input train.jsonl --output out.jsonl"
TRAIN = "train --config run.yaml --device cpu --nproc-per-node 1"
DRY = TRAIN + " --dry-run"
STEPS = TRAIN + " train.save_steps=1 train.scheduler=constant"
FROM_RUN = TRAIN + " output.dir=r2 tuning.lora.init_from=run/adapter"
EVAL = "eval --config run.yaml --device cpu --max-new-tokens 2"
SERVE = "serve --model model --device cpu --port 0"
AXOLOTL = {"a.yaml": "base_model: model\nadapter: lora\nmicro_batch_size: 1\nsequence_len: 128\nlora_r: 4\n"
                     "datasets: [{path: train.jsonl, type: chat_template}]\n"}

# Files of the row ("run", "full": a finished run), command | message | advice | ways: commands, or other files and a command.
COMMANDS = [
    ({}, "trian", "unknown command", "did you mean `sftrun train`?", [DRY]),
    ({}, "finetune", "unknown command", "did you mean `sftrun train`?", [DRY]),
    ({}, "--dry-run " + TRAIN, "stands before the command", "write it after the command: sftrun train --dry-run", [DRY]),
    ({}, "train.epochs=40 train.max_steps=null " + DRY, "stands before the command", "write it after the command: sftrun train train.epochs=40",
     [DRY + " train.epochs=40 train.max_steps=null"]),
    ({}, DRY + " tuning.lora.target_modules=[q_proj, v_proj]", "the shell split", "write it in single quotes",
     [DRY + " 'tuning.lora.target_modules=[q_proj, v_proj]'"]),
    ({}, DRY + " --train.epochs 40", "unknown flag", "write it without dashes: train.epochs=VALUE", [DRY + " train.epochs=40 train.max_steps=null"]),
    ({}, DRY + " --batch-size 1", "unknown flag", "settings are written without dashes: train.batch_size=VALUE", [DRY + " train.batch_size=1"]),
    ({}, DRY + " --learning_rate 1e-4", "unknown flag", "train.learning_rate=VALUE", [DRY + " train.learning_rate=1e-4"]),
    ({}, DRY + " --num-train-epochs 40", "unknown flag", "train.epochs=VALUE", [DRY + " train.epochs=40 train.max_steps=null"]),
    ({}, DRY + " --load-in-4bit", "unknown flag", "set `tuning.mode: qlora` (a base in NF4), or `tuning.quant: nf4`",
     [DRY + " tuning.mode=qlora", DRY + " tuning.quant=nf4"]),
    ({}, DRY + " --output runs/x", "unknown flag", "settings are written without dashes: output.dir=VALUE", [DRY + " output.dir=runs/x"]),
    ({}, DRY + " --report-to tensorboard", "unknown flag", "settings are written without dashes: output.report_to=VALUE",
     [DRY + " output.report_to=tensorboard", DRY + " 'output.report_to=[tensorboard, jsonl]'"]),
    ({}, DRY + " --local-rank 0", "unknown flag", "remove it", [DRY]),
    ({}, DRY + " output", "is not of the form section.key=value", "write output.dir=VALUE", [DRY + " output.dir=x"]),
    ({}, "generate --model model --devic cpu --prompt hello", "unknown flag", "did you mean --device?", [GENERATE]),
    ({}, GENERATE + " --input train.jsonl", "cannot be used together", "keep one of them", [GENERATE, ANSWERS]),
    ({}, GENERATE + " --system be --no-chat", "--system has no effect with --no-chat", "remove --no-chat, or write the system message into the prompt",
     [GENERATE + " --system be", GENERATE.replace("hello", "be") + " --no-chat"]),
    ({}, GENERATE + " --device-map auto --tp 2", "another flag divides the model too", "leave it out, or the flags --strategy, --tp, --pp and --nproc-per-node",
     [GENERATE + " --tp 2 --nproc-per-node 2", GENERATE + " --device-map auto"]),
    ({}, GENERATE + " --num-beams 4", "beam search is not supported", "or sample with --temperature", [GENERATE, GENERATE + " --temperature 0.7"]),
    ({}, GENERATE + " --top-p 0.5", "--top-p has no effect without --temperature", "add, for example, --temperature 0.7",
     [GENERATE + " --top-p 0.5 --temperature 0.7"]),
    ({}, GENERATE + " --stop ''", "--stop is empty", "give a text to stop at", [GENERATE + " --stop x"]),
    ({}, GENERATE + " --subset en", "choose among the files of --input", "leave them out, or name a folder with --input", [GENERATE]),
    ({}, ANSWERS + " --split train", "--split has no effect", "leave it out, or name a folder with --input",
     [ANSWERS, ({"d/train.jsonl": GOOD}, ANSWERS.replace("--input train.jsonl", "--input d") + " --split train")]),
    ({}, GENERATE + " --dtype fp16", "fp16 is not supported on a CPU at --dtype", "use bf16 or fp32",
     [GENERATE + " --dtype bf16", GENERATE + " --dtype fp32"]),
    ({"out.csv": "x"}, ANSWERS.replace("out.jsonl", "out.csv"), "exists", "name another file, or add --overwrite to replace it",
     [ANSWERS.replace("out.jsonl", "out.csv") + " --overwrite", ANSWERS]),
    ({}, ANSWERS.replace("out.jsonl", "nodir/out.jsonl"), "no such directory", "mkdir -p nodir",
     [({"nodir/x": ""}, ANSWERS.replace("out.jsonl", "nodir/out.jsonl"))]),
    ({}, "generate --model bnb-nf4 --device cpu --max-new-tokens 2 --prompt hello --chat", "the model has no chat template",
     "leave --chat out, or give a model with a chat template",
     ["generate --model bnb-nf4 --device cpu --max-new-tokens 2 --prompt hello", GENERATE + " --chat"]),
    ({}, "generate --model bnb-nf4 --device cpu --max-new-tokens 2 --prompt hello --system x", "--system needs a chat template",
     "write the system message into the prompt", ["generate --model bnb-nf4 --device cpu --max-new-tokens 2 --prompt xhello"]),
    ({}, ANSWERS.replace("--model model", "--model bnb-nf4"), "has no chat template", 'use a model with a chat template, or records with "prompt"',
     [ANSWERS, *(({"train.jsonl": [{key: "hello"}]}, ANSWERS.replace("--model model", "--model bnb-nf4")) for key in ("prompt", "text"))]),
    ({"q.csv": "question\nwhat?\n"}, ANSWERS.replace("train.jsonl", "q.csv"), "the record has no prompt", 'rename "question" to "prompt"; known:',
     [({"q.csv": f"{key}\nwhat?\n"}, ANSWERS.replace("train.jsonl", "q.csv")) for key in ("prompt", "instruction", "text")]),
    ({"q.jsonl": [{"conversations": [{"from": "Person", "value": "hello"}]}]}, ANSWERS.replace("train.jsonl", "q.jsonl"), "which is not a known role",
     "known: human, user;", [({"q.jsonl": [{"conversations": [{"from": "human", "value": "hello"}]}]}, ANSWERS.replace("train.jsonl", "q.jsonl"))]),
    ({}, "chat --model bnb-nf4 --device cpu", "has no chat template", "use `sftrun generate`, which continues texts",
     ["generate --model bnb-nf4 --device cpu --max-new-tokens 2 --prompt hello"]),
    ({}, SCORE.replace("--model model", "--model bnb-nf4"), "the model has no chat template", "use the model's instruct version", [SCORE]),
    ({}, SCORE.replace("train.jsonl", "pairs.jsonl"), "this is preference data", 'write a record for each answer: {"prompt": …, "completion": …}',
     [({"pairs.jsonl": [{"prompt": "hello", "completion": "hi"}]}, SCORE.replace("train.jsonl", "pairs.jsonl"))]),
    ({}, SCORE.replace("train.jsonl", "qa.jsonl"), "has no known format", 'rename "question" to "prompt" and "answer" to "completion" (raw text); known:',
     [({"qa.jsonl": [{"prompt": "hello", "completion": "hi"}]}, SCORE.replace("train.jsonl", "qa.jsonl")),
      ({"qa.jsonl": [{"instruction": "hello", "output": "hi"}]}, SCORE.replace("train.jsonl", "qa.jsonl")),
      ({"qa.jsonl": [{"text": "hello"}]}, SCORE.replace("train.jsonl", "qa.jsonl"))]),
    ({}, SCORE.replace("out.jsonl", "-") + " --json", "both write to standard output", "write the records to a file", [SCORE + " --json"]),
    ({}, "tokenize --model model --input train.jsonl --output out.jsonl", "the record has no text", "give --chat if the records are conversations",
     ["tokenize --model model --input train.jsonl --output out.jsonl --chat"]),
    ({}, "tokenize --model model --input texts.jsonl --output out.jsonl --chat", "which --chat requires", "remove --chat",
     ["tokenize --model model --input texts.jsonl --output out.jsonl"]),
    ({}, "tokenize --model bnb-nf4 --input train.jsonl --output out.jsonl --chat", "the model has no chat template",
     "use the model's instruct version", ["tokenize --model model --input train.jsonl --output out.jsonl --chat"]),
    ({}, "preview --config run.yaml --val", "--val shows data.val, which is not set", "set data.val, or remove --val",
     ["preview --config run.yaml --val data.val=val.jsonl", "preview --config run.yaml"]),
    ({}, "preview --config run.yaml --html x.html --json", "cannot be used together", "keep one of them",
     ["preview --config run.yaml --html x.html", "preview --config run.yaml --json"]),
    ("run", "generate --model run --prompt hello --device cpu", "is a run directory with an adapter and no model",
     "name the adapter: --adapter run/adapter", ["generate --adapter run/adapter --prompt hello --device cpu --max-new-tokens 2"]),
    ("run", "bench --model run --device cpu", "is a run directory with an adapter and no model",
     "merge it, and name the result: sftrun merge --adapter run/adapter --output run/adapter-merged",
     ["merge --adapter run/adapter --output run/adapter-merged"]),
    ("run", "train --config run.yaml --dry-run model.name=run/adapter", "is an adapter, not a model",
     "name its base model, and train the adapter further with tuning.lora.init_from=run/adapter", ["train --config run.yaml --dry-run tuning.lora.init_from=run/adapter"]),
    ("run", EVAL, "the run has no validation data", "set data.val or data.val_split in the YAML, or on the command line: data.val=FILE",
     [EVAL + " data.val=val.jsonl", EVAL + " data.val_split=1"]),
    ({}, EVAL + " data.val=val.jsonl", "the run has no result", "or evaluate its base model with --adapter none",
     [EVAL + " data.val=val.jsonl --adapter none"]),
    ("run", EVAL + " data.val=val.jsonl --predictions p.jsonl --no-generate", "--predictions and --max-new-tokens need generated answers",
     "leave out --no-generate, or --predictions and --max-new-tokens",
     [EVAL + " data.val=val.jsonl --predictions p.jsonl", "eval --config run.yaml --device cpu data.val=val.jsonl --no-generate"]),
    ("run", EVAL + " data.val=pairs.jsonl data.train=pairs2.jsonl train.objective=kto", "kto learns from judgements",
     "for answers, add them here: data.val=FILE train.objective=sft", [EVAL + " data.val=val.jsonl data.train=pairs2.jsonl train.objective=sft"]),
    ({}, "merge --model model --output m.gguf --format safetensors", "names a .gguf file, but --format is safetensors",
     "name a directory, or remove --format safetensors", ["merge --model model --output m --format safetensors",
     "merge --model model --output m.gguf"]),
    ("run", "merge --adapter run/adapter --output m.gguf --format gguf --max-shard-size 1GB", "is only for", "remove it",
     ["merge --adapter run/adapter --output m.gguf --format gguf"]),
    ("run", "merge --model model --output m --as-stored", "is only for adapters", "remove it, or name the adapter with --adapter",
     ["merge --model model --output m", "merge --model model --output m --as-stored --adapter run/adapter"]),
    ("run", "merge --adapter run/adapter --output m --dtype q4_k_m", "is only for GGUF models", "write --format gguf, or one of auto, bf16",
     ["merge --adapter run/adapter --output m --dtype q4_k_m --format gguf", "merge --adapter run/adapter --output m --dtype bf16"]),
    ("run", "merge --adapter run/adapter --output m.gguf --dtype nf4", "is only for safetensors models", "name a directory as --output, or one of",
     ["merge --adapter run/adapter --output m --dtype nf4", "merge --adapter run/adapter --output m.gguf --dtype f16"]),
    ("run", "merge --adapter run/adapter --output m --max-shard-size 5X", "is not a size", "write, for example, 5GB or 500MB",
     [f"merge --adapter run/adapter --output m --max-shard-size {size}" for size in ("5GB", "500MB")]),
    ({"m/x": ""}, "merge --model model --output m", "is not an empty directory", "name a new directory", ["merge --model model --output m2"]),
    ({"m/config.json": "{}"}, "merge --model model --output m", "is not an empty directory", "name a new directory, or replace it with --overwrite",
     ["merge --model model --output m2", "merge --model model --output m --overwrite"]),
    ({"m.gguf": "x"}, "merge --model model --output m.gguf", "exists", "name a new file, or replace it with --overwrite",
     ["merge --model model --output m2.gguf", "merge --model model --output m.gguf --overwrite"]),
    ({"m": "x"}, "merge --model model --output m", "m exists", "name a new directory", ["merge --model model --output m2"]),
    ({}, "merge --model model --output model --overwrite", "would remove the input", "name another output", ["merge --model model --output m"]),
    ({}, "merge --model llama3-gguf/model-Q8_0.gguf --output m.gguf", "the model is a GGUF file already",
     "name a type with --dtype, or a directory to write safetensors into",
     ["merge --model llama3-gguf/model-Q8_0.gguf --output m.gguf --dtype f16", "merge --model llama3-gguf/model-Q8_0.gguf --output m"]),
    ("full", "merge --checkpoint run --output m", "is not a checkpoint", "it has checkpoints; the newest is run/checkpoints/step-000001",
     ["merge --checkpoint run/checkpoints/step-000001 --output m"]),
    ("run", "merge --checkpoint run/checkpoints/step-000001 --output m", "the checkpoint holds an adapter", "name it with --adapter",
     ["merge --adapter run/checkpoints/step-000001 --output m --model model"]),
    ("full", "merge --checkpoint run/checkpoints/step-000001 --output m --model bnb-nf4", "began with another model",
     "name the model that the run began with: --model MODEL", ["merge --checkpoint run/checkpoints/step-000001 --output m --model model"]),
    ("full", "generate --adapter run --prompt hello --device cpu", "is a run directory with a model and no adapter",
     "name the model: --model run/model",
     ["generate --model run/model --prompt hello --device cpu --max-new-tokens 2"]),
    ({}, EVAL + " data.val=val.jsonl --adapter model", "is a model, not an adapter", "name it with --adapter none model.name=model",
     [EVAL + " data.val=val.jsonl --adapter none model.name=model"]),
    ({}, "bench --arch model --device cpu --steps 1", "model is a directory", "name its config.json: --arch model/config.json; or, to use its weights: --model model",
     ["bench --arch model/config.json --device cpu --steps 1", "bench --model model --device cpu --steps 1"]),
    ({}, "bench --model model --images 1 --device cpu --steps 1", "the model reads text alone", "remove it, or name a model with images",
     ["bench --model model --device cpu --steps 1"]),
    ({}, "generate --model model --adapter model --prompt hello --device cpu", "is a model, not an adapter", "name it with --model model",
     [GENERATE]),
    ("run", "generate --adapter run/adapter/adapter_config.json --prompt hello --device cpu", "is a file, not an adapter",
     "name the directory that has adapter_config.json", ["generate --adapter run/adapter --prompt hello --device cpu --max-new-tokens 2"]),
    ("run", "merge --adapter run/adapter --output m --format vllm --dtype bf16", "--dtype is only for", "remove it",
     ["merge --adapter run/adapter --output m --format vllm"]),
    ({}, "quantize --model model --output m.gguf --method nf4", "names a .gguf file, but --method nf4 writes safetensors",
     "name a directory, or choose a GGUF method: --method q8_0",
     ["quantize --model model --output m --method nf4", "quantize --model model --output m.gguf --method q8_0"]),
    ({}, "quantize --model model --output m.gguf --method q8_0 --max-shard-size 1GB", "is only for safetensors models", "remove it",
     ["quantize --model model --output m.gguf --method q8_0"]),
    ({}, "quantize --model model --output m --method fp8 --block-size 64", "is only for", "remove it",
     ["quantize --model model --output m --method fp8"]),
    ({}, "quantize --model model --output m --method nf4 --skip-modules lm_hed", "no module of the model is named",
     "name modules as the model does: down_proj, or layers.0.mlp",
     [f"quantize --model model --output m --method nf4 --skip-modules {module}" for module in ("down_proj", "layers.0.mlp")]),
    ({}, "memory-check --config run.yaml --gpus 24GB --nproc-per-node 2", "each needs a GPU of its own",
     "lower it to 1, or name more GPUs with --gpus",
     ["memory-check --config run.yaml --gpus 24GB --nproc-per-node 1", "memory-check --config run.yaml --gpus '2x 24GB' --nproc-per-node 2"]),
    ({}, "memory-check --config run.yaml --gpus 24GB --device cpu", "--gpus names GPUs, and --device is cpu", "remove one of them",
     ["memory-check --config run.yaml --gpus 24GB", "memory-check --config run.yaml --device cpu"]),
    ({}, "memory-check --config run.yaml --gpus RTX409", "unknown GPU", "did you mean", ["memory-check --config run.yaml --gpus RTX4090",
                                                                                     "memory-check --config run.yaml --gpus 24GB"]),
    ({}, "memory-check --config run.yaml --gpus T4", "is too old", "name other GPUs, or plan for the CPU: --device cpu",
     ["memory-check --config run.yaml --gpus A100", "memory-check --config run.yaml --device cpu"]),
    ({}, "memory-check --config run.yaml --gpus A100,", "has an empty GPU name", "write, for example, 2x RTX4090",
     ["memory-check --config run.yaml --gpus '2x RTX4090'"]),
    ({}, "config import run.yaml", "the file is a configuration of sftrun already", "use it with `sftrun train --config`", [DRY]),
    ({"o.yaml": "lr: 1\n"}, "config import o.yaml", "is not recognised", "name its tool: --from", ["config import o.yaml --from trl"]),
    (AXOLOTL, "train --dry-run --config a.yaml", "this is a file of Axolotl", "translate it: sftrun config import a.yaml --output from-axolotl.yaml",
     ["config import a.yaml --output from-axolotl.yaml"]),
    ({**AXOLOTL, "b.yaml": "x"}, "config import a.yaml -o b.yaml", "b.yaml exists already",
     "choose another name with --output, or replace it with --overwrite", ["config import a.yaml -o c.yaml", "config import a.yaml -o b.yaml --overwrite"]),
    (AXOLOTL, "config import a.yaml -o a.yaml --overwrite", "is the file that is imported", "choose another name with --output", ["config import a.yaml -o c.yaml"]),
    ({}, "config init --model model --data train.jsonl --yes -o run.yaml", "exists already",
     "choose another name with --output, or replace it with --overwrite",
     ["config init --model model --data train.jsonl --yes -o r2.yaml", "config init --model model --data train.jsonl --yes -o run.yaml --overwrite"]),
    ("run", TRAIN + " --overwrite --resume run/checkpoints/step-000001", "--overwrite and --resume are both given",
     "use --overwrite to start from the beginning, or --resume to continue",
     [TRAIN + " --overwrite", TRAIN + " train.max_steps=1 --resume run/checkpoints/step-000001"]),
    ("two steps", STEPS + " train.max_steps=1", "give 1 step, but 2 are already done",
     "raise train.epochs or train.max_steps; or go back to an earlier checkpoint with --resume DIR; or start a new run: choose another output.dir, "
     "or --overwrite moves this run aside",
     [STEPS + " train.max_steps=3", STEPS + " train.max_steps=1 --resume run/checkpoints/step-000001 => renamed to abandoned-step-000002",
      STEPS + " train.max_steps=1 output.dir=r2", STEPS + " train.max_steps=1 --overwrite"]),
    ("run", TRAIN + " --resume never", "already has checkpoints",
     "choose another output.dir, or, in place of --resume never, resume with --resume auto or move the old run aside with --overwrite",
     [TRAIN + " --resume never output.dir=r2", TRAIN + " --resume auto", TRAIN + " --overwrite"]),
    ("run", TRAIN + " --resume run/checkpoints", "there is no checkpoint to resume from", "name a folder like checkpoints/step-000100",
     [TRAIN + " --resume run/checkpoints/step-000001"]),
    ("run", TRAIN + " train.learning_rate=1e-3", "the run differs",
     "to start a new run choose another output.dir, or --overwrite moves this run aside; to build on these weights choose another output.dir "
     "and set tuning.lora.init_from to the directory `adapter` of the finished run",
     [TRAIN + " train.learning_rate=1e-3 output.dir=r2", TRAIN + " train.learning_rate=1e-3 --overwrite",
      TRAIN + " train.learning_rate=1e-3 output.dir=r2 tuning.lora.init_from=run/adapter"]),
    ("full", TRAIN.replace("run.yaml", "full.yaml") + " train.learning_rate=1e-3", "the run differs",
     "choose another output.dir and set model.name to the directory `model` of the finished run",
     [TRAIN.replace("run.yaml", "full.yaml") + " train.learning_rate=1e-3 output.dir=r2 model.name=run/model"]),
    ("run", TRAIN + " --overwrite tuning.lora.init_from=run/adapter", "is in the run that --overwrite moves aside",
     "choose another output.dir, without --overwrite", [TRAIN + " output.dir=r2 tuning.lora.init_from=run/adapter"]),
    ("run", TRAIN + " tuning.backend=bnb", "the run differs", "--allow-backend-change resumes with the new backend",
     [TRAIN + " tuning.backend=bnb --allow-backend-change"]),
    ({}, TRAIN + " train.warmup_steps=1 train.warmup_from=zero", "nothing will be trained",
     "raise train.max_steps, or set train.warmup_from: first_step",
     [TRAIN + " train.warmup_steps=1 train.warmup_from=zero train.max_steps=4", TRAIN + " train.warmup_steps=1 train.warmup_from=first_step"]),
    ({}, TRAIN + " train.learning_rate=0", "nothing will be trained", "raise train.learning_rate", [TRAIN + " train.learning_rate=1e-4"]),
    ({}, TRAIN + " train.max_steps=null train.epochs=2", "the model will learn little", "raise train.epochs (2)",
     [TRAIN + " train.max_steps=null train.epochs=10"]),
    ({}, DRY + " --nnodes 2", "--nnodes requires --master-addr", "--master-addr HOST", [DRY + " --nnodes 2 --master-addr localhost"]),
    ({}, DRY.replace("--device cpu", "--device cuda"), "a GPU was requested", "--device cpu trains on the CPU", [DRY]),
    ({}, TRAIN + " --profile x", "neither a step nor a range", "write a step (5) or the first and the last one (5-7)",
     [TRAIN + " --profile 1", TRAIN + " --profile 1-1"]),
    ({}, "bench --arch model/config.json --model model --device cpu", "cannot be used together", "keep one of them",
     ["bench --arch model/config.json --device cpu --steps 1 --seq-len 8 --batch-size 1"]),
    ("run", FROM_RUN + " tuning.lora.r=8", "has the rank 4, the run's 8", "set tuning.lora.r: 4", [FROM_RUN + " tuning.lora.r=4"]),
    ("run", FROM_RUN + " tuning.lora.target_modules=[q_proj]", "the adapter also has", "set tuning.lora.target_modules: [",
     [FROM_RUN + " tuning.lora.target_modules=[q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj]"]),
    ("run", FROM_RUN + " tuning.lora.dora=true", "the adapter has no magnitudes (DoRA)", "set tuning.lora.dora: false",
     [FROM_RUN + " tuning.lora.dora=false"]),
    ("run", FROM_RUN + " tuning.lora.modules_to_save=[lm_head]", "the adapter ", "set tuning.lora.modules_to_save: [], as in the adapter",
     [FROM_RUN + " 'tuning.lora.modules_to_save=[]'"]),
    ("run", FROM_RUN + " tuning.lora.alpha=8", "was made with a scaling of", "(tuning.lora.alpha, r, rslora, alpha_pattern)", [FROM_RUN]),
    ("run", TRAIN + " --resume run/checkpoints/step-000002", "no such file or directory", "check the path",
     [TRAIN + " --resume run/checkpoints/step-000001"]),
    ({}, "env SFTRUN_LOG=loud " + DRY, "is neither quiet, normal nor verbose", "set one of these words, or unset it",
     [DRY, *(f"env SFTRUN_LOG={word} " + DRY for word in ("quiet", "normal", "verbose"))]),
    ({}, "env RANK=0 WORLD_SIZE=2 " + DRY, "is not set, but RANK and WORLD_SIZE are",
     "or unset RANK and WORLD_SIZE to let sftrun start the workers", [DRY]),
    ({}, "env SFTRUN_TRAIN__EPOCH=40 " + DRY, "unknown key `train.epoch`", "did you mean",
     ["env SFTRUN_TRAIN__EPOCHS=40 " + DRY + " train.max_steps=null"]),
    ({}, "env HF_ENDPOINT=huggingface.co download a/b", "HF_ENDPOINT is not a URL", "write, for example, https://huggingface.co", []),
    ({}, "config check --config run.yaml train.warmup_steps=0.03", "it takes", "a share of all steps is train.warmup_ratio: 0.03",
     ["config check --config run.yaml train.warmup_ratio=0.03"]),
    ({}, "config check --config run.yaml train.warmup_ratio=10", "it takes", "a number of steps is train.warmup_steps: 10",
     ["config check --config run.yaml train.warmup_steps=10"]),
    ({}, "config check --config run.yaml train=3", "is a section, not a key", "set its keys one by one: train.objective=", []),
    ({}, "config check --config run.yaml parallel.offload.gradients=cpu", "unknown key", "did you mean one of optimizer, activations, base, params?",
     [f"config check --config run.yaml parallel.offload.{part}=none" for part in ("optimizer", "activations", "base", "params")]),
    ({}, "config check --config run.yaml train.early_stopping=true", "is not supported in this version",
     "set train.early_stopping_patience to a number of evaluations without an improvement",
     ["config check --config run.yaml train.early_stopping_patience=2 data.val_split=1"]),
    ({}, "config check --config run.yaml tuning.train_parts=[attention]", "has the part `attention`",
     "the parts of a model are language, projector and vision", ["config check --config run.yaml tuning.train_parts=[language,projector,vision]"]),
    ({}, "config check --config run.yaml tuning.train_parts=[merger]", "has the part `merger`", "write `projector`, which `merger` is here",
     ["config check --config run.yaml tuning.train_parts=[projector]"]),
    ({}, "config check --config run.yaml tuning.train_parts=all", "has the part `all`", "name all parts: [language, projector, vision]",
     ["config check --config run.yaml tuning.train_parts=[language,projector,vision]"]),
    ({}, "config check --config run.yaml \"tuning.lora.target_modules=['.*_proj']\"", "in a list, where names are compared", "write the regular expression alone",
     ["config check --config run.yaml 'tuning.lora.target_modules=.*_proj'"]),
    ({}, DRY + " 'tuning.lora.target_modules=(q|v)_proj'", "matches the name of no module", "it has to match a whole name, as in PEFT; names are model.layers.0.",
     [DRY + " 'tuning.lora.target_modules=.*(q|v)_proj'"]),
    ({}, DRY + " 'tuning.lora.target_modules=.*layers.*'", "which gets no adapter", "write it so that it matches linear layers alone",
     [DRY + " 'tuning.lora.target_modules=.*layers.*_proj'"]),
    ({"run.yaml": FULL_YAML}, "config check --config run.yaml 'tuning.train_parts={language: lora}'", "trains a part with LoRA",
     "write the parts as a list: [language]", ["config check --config run.yaml tuning.train_parts=[language]"]),
    ({}, "config check --config run.yaml tuning.quant=gptq", "gptq", "use nf4 or fp4 for 4 bits, int8 or fp8 for 8",
     [f"config check --config run.yaml tuning.quant={word}" for word in ("nf4", "fp4", "int8", "fp8")]),
    ({}, "preview --config run.yaml data.train=trian.jsonl", "no such file", "paths are relative to the current directory",
     ["preview --config run.yaml"]),
    ({}, "memory-check --config run.yaml model.name=modle", "no such model", "did you mean", ["memory-check --config run.yaml model.name=model"]),
]


# Tool, its file | message | advice | what the file is changed to, key by key; None removes one.
IMPORTS = [
    ("accelerate", {"distributed_type": "NO", "mixed_precision": "fp8"}, "`mixed_precision` is fp8", "set it to bf16", [{"mixed_precision": "bf16"}]),
    ("accelerate", {"distributed_type": "NO", "mixed_precision": "int8"}, "`mixed_precision` is", "write no, fp16 or bf16",
     [{"mixed_precision": word} for word in ("no", "fp16", "bf16")]),
    ("accelerate", {"distributed_type": "NO", "compute_environment": "AMAZON_SAGEMAKER"}, "`compute_environment` is", "set it to LOCAL_MACHINE",
     [{"compute_environment": "LOCAL_MACHINE"}]),
    ("accelerate", {"distributed_type": "NO", "tpu_use_cluster": True}, "is not supported", "remove it: devices are NVIDIA GPUs and CPUs",
     [{"tpu_use_cluster": None}]),
    ("accelerate", {"distributed_type": "NO", "commands": ["ls"]}, "is not supported", "remove it; start sftrun on every machine",
     [{"commands": None}]),
    ("accelerate", {"distributed_type": "XPU"}, "`distributed_type` is", "write NO, MULTI_GPU, MULTI_CPU, FSDP or DEEPSPEED",
     [{"distributed_type": word} for word in ("NO", "MULTI_GPU", "MULTI_CPU", "FSDP", "DEEPSPEED")]),
    ("accelerate", {"distributed_type": "MEGATRON_LM", "megatron_lm_config": {"megatron_lm_tp_degree": 2}}, "MEGATRON_LM",
     "use distributed_type FSDP, or MULTI_GPU",
     [{"distributed_type": word, "megatron_lm_config": None} for word in ("FSDP", "MULTI_GPU")]),
    ("accelerate", {"distributed_type": "FSDP", "fsdp_config": {"fsdp_sharding_strategy": "HALF"}}, "`fsdp_config.fsdp_sharding_strategy` is",
     "write FULL_SHARD, SHARD_GRAD_OP, NO_SHARD or HYBRID_SHARD",
     [{"fsdp_config": {"fsdp_sharding_strategy": word}} for word in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD")]),
    ("accelerate", {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 4}}, "zero_stage` is 4", "write 0, 1, 2 or 3",
     [{"deepspeed_config": {"zero_stage": stage}} for stage in range(4)]),
    ("accelerate", {"distributed_type": "MULTI_GPU", "deepspeed_config": {"zero_stage": 2}}, "`deepspeed_config.zero_stage` is given",
     "set distributed_type to DEEPSPEED, or remove deepspeed_config", [{"distributed_type": "DEEPSPEED"}, {"deepspeed_config": None}]),
    ("accelerate", {"distributed_type": "NO", "parallelism_config": {"parallelism_config_tp_size": 2}}, "tp_size` is 2, but `distributed_type` is NO",
     "set distributed_type to MULTI_GPU, FSDP or DEEPSPEED, or the size to 1",
     [{"distributed_type": "MULTI_GPU"}, {"distributed_type": "FSDP"}, {"parallelism_config": {"parallelism_config_tp_size": 1}}]),
    ("accelerate", {"distributed_type": "FSDP", "num_processes": 2, "parallelism_config": {"parallelism_config_dp_shard_size": 2,
                                                                                          "parallelism_config_tp_size": 2}},
     "need 4 processes, but `num_processes` is 2", "set num_processes to a multiple of 4, or change the sizes",
     [{"num_processes": 4}, {"parallelism_config": {"parallelism_config_dp_shard_size": 2}}, {"parallelism_config": {"parallelism_config_tp_size": 2}}]),
    ("accelerate", {"distributed_type": "NO", "num_processes": 2}, "`num_processes` is 2", "set distributed_type to MULTI_GPU, or num_processes to 1",
     [{"distributed_type": "MULTI_GPU"}, {"num_processes": 1}]),
    ("accelerate", {"distributed_type": "MULTI_GPU", "num_processes": 3, "num_machines": 2}, "is not a multiple of",
     "set num_processes to a multiple of 2", [{"num_processes": 4}]),
    ("accelerate", {"distributed_type": "MULTI_GPU", "num_processes": 4, "num_machines": 2, "machine_rank": 2}, "is not below",
     "number the machines from 0, or raise num_machines",
     [{"machine_rank": 0}, {"machine_rank": 1}, {"num_machines": 4}]),
    ("accelerate", {"distributed_type": "MULTI_GPU", "use_cpu": True}, "`use_cpu` is true", "set distributed_type to MULTI_CPU, or use_cpu to false",
     [{"distributed_type": "MULTI_CPU"}, {"use_cpu": False}]),
    ("accelerate", {"distributed_type": "MULTI_GPU", "num_processes": 4, "gpu_ids": "0,1"}, "`gpu_ids` names 2 GPUs",
     "name as many GPUs as processes, or write all",
     [{"gpu_ids": "0,1,2,3"}, {"gpu_ids": "all"}]),
    ("deepspeed", {"optimizer": {"type": "AdamW", "params": {"betas": [0.9]}}}, "it takes two numbers", "write, for example, [0.9, 0.999]",
     [{"optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.999]}}}]),
    ("deepspeed", {"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}, "weight decay inside the gradient is not supported",
     "remove it, or set it to true (AdamW)", [{"optimizer": {"type": "Adam", "params": {}}}, {"optimizer": {"type": "Adam",
     "params": {"adam_w_mode": True}}}]),
    ("deepspeed", {"optimizer": {"type": "Adam", "params": {"amsgrad": True}}}, "is not supported", "remove it", [{"optimizer": {"type": "Adam",
     "params": {}}}]),
    ("deepspeed", {"zero_optimization": {"stage": 5}}, "stage` is 5", "write 0, 1, 2 or 3",
     [{"zero_optimization": {"stage": stage}} for stage in range(4)]),
    ("deepspeed", {"zero_optimization": {"stage": 2, "zero_hpz_partition_size": 4}}, "but the stage is 2",
     "set zero_optimization.stage to 3, or remove it",
     [{"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 4}}, {"zero_optimization": {"stage": 2}}]),
    ("deepspeed", {"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, "is not supported", "set it to false",
     [{"zero_optimization": {"stage": 3, "zero_quantized_weights": False}}]),
    ("deepspeed", {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "is `nvme`, which is not supported",
     "use cpu (host memory) or none",
     [{"zero_optimization": {"stage": 3, "offload_param": {"device": device}}} for device in ("cpu", "none")]),
    ("deepspeed", {"amp": {"enabled": True}}, "is not supported", "set it to false, and bf16.enabled or fp16.enabled to true",
     [{"amp": {"enabled": False}, kind: {"enabled": True}} for kind in ("bf16", "fp16")]),
    ("deepspeed", {"torch_autocast": {"enabled": True}}, "is not supported", "set it to false, and bf16.enabled or fp16.enabled to true",
     [{"torch_autocast": {"enabled": False}, "bf16": {"enabled": True}}]),
    ("deepspeed", {"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "are both true", "keep one of them", [{"fp16": None},
     {"bf16": {"enabled": False}}]),
    ("deepspeed", {"elasticity": {"enabled": True}}, "is not supported", "remove it, or set enabled to false", [{"elasticity": None},
     {"elasticity": {"enabled": False}}]),
    ("deepspeed", {"autotuning": {"enabled": True}}, "is not supported", "set enabled to false", [{"autotuning": {"enabled": False}}]),
    ("deepspeed", {"sparse_attention": {"mode": "fixed"}}, "is not supported", "remove it", [{"sparse_attention": None}]),
    ("deepspeed", {"train_batch_size": 30, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}, "is not a multiple of",
     "set one of the three to auto", [{"train_batch_size": "auto"}]),
    ("deepspeed", {"train_batch_siz": 8}, "unknown key", "did you mean `train_batch_size`?", [{"train_batch_siz": None, "train_batch_size": 8}]),
    ("deepspeed", {"train_batch_size": 0}, "; it takes", "write, for example, 32; it becomes train.global_batch_size here",
     [{"train_batch_size": 32}]),
    ("llama-factory", {"stage": "ppo", "finetuning_type": "lora"}, "`ppo`, which is not supported", "`train.objective` takes sft, dpo, ipo",
     [{"stage": "sft"}, {"stage": "dpo"}, {"stage": "kto"}]),
    ("llama-factory", {"stage": "dpo", "finetuning_type": "lora", "pref_loss": "kto_pair"}, "`kto_pair`, which is not supported",
     "set pref_loss to sigmoid, or stage to kto", [{"pref_loss": "sigmoid"}, {"stage": "kto"}]),
    ("llama-factory", {"stage": "sft", "finetuning_type": "oft"}, "`oft`, which is not supported",
     "`tuning.mode` takes lora, qlora, full and partial",
     [{"finetuning_type": "lora"}, {"finetuning_type": "full"}]),
    ("axolotl", {"adapter": "lora", "rl": "grpo"}, "`grpo`, which is not supported", "remove `rl`, import the rest, and set `train.objective: grpo`",
     [{"rl": None}]),
    ("axolotl", {"adapter": "lora", "rl": "kto", "dpo_loss_type": ["ipo"]}, "is for `rl: dpo`", "remove it, or set rl to dpo", [{"rl": "dpo"},
     {"dpo_loss_type": None}]),
    ("axolotl", {"adapter": "lora", "rl": "dpo", "dpo_loss_weights": [0.5]}, "are the weights of", "name the losses in dpo_loss_type",
     [{"dpo_loss_type": ["sigmoid"]}]),
    ("axolotl", {"adapter": "lora", "rl": "dpo", "dpo_use_weighting": True}, "is not supported", "set it to false", [{"dpo_use_weighting": False}]),
    ("trl", {"reward_funcs": ["f"], "learning_rate": 1e-4}, "is not supported", "", [{"reward_funcs": None}]),
    ("trl", {"use_peft": True, "loss_type": ["sigmoid", "aot"]}, "has the loss aot, which is not supported", "the losses of `train.objective: dpo` are",
     [{"loss_type": ["sigmoid"]}]),
    ("trl", {"use_peft": True, "loss_type": ["sigmoid", "sft"], "loss_weights": [1.0]}, "is a list of 1, and `loss_type` has 2 losses",
     "one weight for each loss", [{"loss_weights": [1.0, 0.5]}]),
    ("trl", {"use_peft": True, "loss_type": "sigmoid", "loss_weights": [-1]}, "has the weight `-1`", "write a number of at least 0",
     [{"loss_weights": [1]}]),
    ("trl", {"use_peft": True, "sync_ref_model": True}, "is not supported", "set it to false", [{"sync_ref_model": False}]),
    ("trl", {"use_peft": True, "alpha": 0.1}, "is not supported", "set it to 0", [{"alpha": 0}]),
    ("trl", {"use_peft": True, "desirable_weight": 1.0, "simpo_gamma": 0.5}, "is for KTOConfig, and `simpo_gamma` for CPOConfig",
     "keep the keys of one trainer", [{"desirable_weight": None}, {"simpo_gamma": None}]),
]
