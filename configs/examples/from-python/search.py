#!/usr/bin/env python3
"""Searches the learning rate and the rank of run.yaml with Optuna. A trial that is worse than half of those before it is stopped early. README.md has the command."""

from __future__ import annotations

import argparse
import pathlib

import optuna
from optuna.trial import TrialState

import sftrun

CONFIG = pathlib.Path(__file__).with_name("run.yaml")


def objective(trial: optuna.Trial) -> float:
    rank = trial.suggest_categorical("rank", [4, 8, 16, 32])
    overrides = {
        "train.learning_rate": trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True),
        "tuning.lora.r": rank,
        "tuning.lora.alpha": 2 * rank,
        "output.dir": f"runs/search/{trial.number}",
    }

    def on_step(record: sftrun.Record) -> None:
        if "eval_loss" in record:
            trial.report(record["eval_loss"], record["step"])
            if trial.should_prune():
                raise optuna.TrialPruned()  # stops the run

    run = sftrun.train(CONFIG, overrides, on_step=on_step, quiet=True, overwrite=True)
    return float(run.evaluations[-1]["eval_loss"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20)
    options = parser.parse_args()
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0), pruner=optuna.pruners.MedianPruner(n_startup_trials=2))
    study.optimize(objective, n_trials=options.trials)
    trials = study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED))
    for trial in trials:
        print(f"{trial.number:3}  {trial.state.name.lower():8}  eval_loss {trial.value:.4f}  {trial.params}")
    print(f"best: trial {study.best_trial.number}, eval_loss {study.best_value:.4f}, {study.best_params}")
    print(sftrun.report(*(f"runs/search/{trial.number}" for trial in trials), output="runs/search/report.html")["output"])


if __name__ == "__main__":
    main()
