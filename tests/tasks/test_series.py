"""Forecasting: the standard protocol by plain numpy, no look into the future, a yardstick against scikit-learn."""

import csv
import io
import json
import pickle

import numpy as np
import pytest
import torch

from regard.errors import BadValue
from regard_workbench import models, tasks
from regard_workbench.comparison.grid import compose
from regard_workbench.csv_text import csv_text
from regard_workbench.tasks.measures.forecast_errors import LINEAR_MAE, LINEAR_MSE, MAE, MSE
from regard_workbench.tasks.measures.linear_forecast import fitted
from regard_workbench.tasks.measures.metrics import Answered, merged, observe
from regard_workbench.tasks.time_series.parts import usual_split
from regard_workbench.training.evaluation import evaluate

ROWS, CONTEXT, HORIZON, COLUMNS = 211, 13, 5, 3
TRAIN, VALIDATION = 126, 42  # 60 % and what is left besides 20 %


def table(rows=ROWS, missing=()):
    random = np.random.default_rng(3)
    values = random.normal(size=(rows, COLUMNS)).cumsum(0) * [1, 20, 0.1] + [5, -300, 0]
    for row, column in missing:
        values[row, column] = np.nan
    return values


def written(folder, values, name="x.csv"):
    lines = ["t,a,b,c"]
    for n, row in enumerate(values):
        lines.append(",".join([str(n), *("" if np.isnan(value) else repr(float(value)) for value in row)]))
    path = folder / name
    path.write_text("\n".join(lines))
    return str(path)


def series(folder, values=None, **options):
    sizes = {"context": CONTEXT, "horizon": HORIZON, "split": "60/20/20 %"}
    data = written(folder, table() if values is None else values)
    return tasks.build("series", data=data, **{**sizes, **options})


def random_model(task, name="forecaster(dim=8, layers=1, patch=4, stride=3, num_heads=2)"):
    torch.manual_seed(7)
    return models.build(name, models.problem_for(name, task.problems())).eval()


def seeded():
    return torch.Generator().manual_seed(5)


def errors_by_numpy(model, values, split):
    """MSE and MAE of the standard protocol, window by window."""
    part = values[:TRAIN]
    scaled = (values - np.nanmean(part, 0)) / np.nanstd(part, 0)
    test = len(values) - len(values) * 20 // 100
    begin, end = {"train": (CONTEXT, TRAIN), "validation": (TRAIN, test), "test": (test, len(values))}[split]
    found = []
    for first in range(begin, end - HORIZON + 1):
        past = scaled[first - CONTEXT : first].copy()
        for column in range(COLUMNS):
            for row in range(CONTEXT):
                back = first - CONTEXT + row
                while np.isnan(past[row, column]):
                    back -= 1
                    past[row, column] = 0.0 if back < 0 else scaled[back, column]
        with torch.no_grad():
            guess = model(tasks.Batch.of(torch.tensor(past[None]).float()))[0].double().numpy()
        found.append(guess - scaled[first : first + HORIZON])
    found = np.array(found)
    return np.nanmean(found**2), np.nanmean(np.abs(found)), int((~np.isnan(found)).sum())


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("missing", [(), ((0, 0), (3, 1), (4, 1), (130, 2), (190, 0), (205, 1))])
def test_errors_are_those_of_the_standard_protocol_by_numpy(split, missing, tmp_path):
    """Standardised by the training part; every window of a part counts, the last small batch too."""
    values = table(missing=missing)
    task = series(tmp_path, values)
    model = random_model(task)
    found = evaluate(task, model, split, batch_size=7)
    mse, mae, count = errors_by_numpy(model, values, split)
    assert found["mse"] == pytest.approx(mse, rel=1e-5) and found["mae"] == pytest.approx(mae, rel=1e-5)
    assert found["loss"] == pytest.approx(mse, rel=1e-4)
    batch = task.batch(task.examples(split), range(len(task.examples(split))), seeded())
    assert int(torch.ones_like(batch.targets).sum() if batch.target_keep is None else batch.target_keep.sum()) == count


def test_windows_of_the_usual_split_are_as_many_as_published(tmp_path):
    """ETTh1: 8209, 2785 and 2785 windows of 336 and 96 steps in 12, 4 and 4 months."""
    lines = ["date,OT"]
    for n in range(17420):
        lines.append(f"{np.datetime64('2016-07-01T00:00:00') + np.timedelta64(n, 'h')},{n % 24}")
    (tmp_path / "x.csv").write_text("\n".join(lines))
    task = tasks.build("series", data=str(tmp_path / "x.csv"))
    assert [len(task.examples(split)) for split in ("train", "validation", "test")] == [8209, 2785, 2785]
    assert "rows 0–8,639 / –11,519 / –14,399 of 17,420" in task.protocol()["parts"]


MODELS = {
    "forecaster(dim=8, layers=2, patch=4, stride=3, num_heads=2)",
    "linear-forecaster",
    "encoder(dim=8, layers=1, num_heads=2)",
    "lstm-attention(dim=8)",
    "transformer(dim=8, layers=1, num_heads=2)",
    "seq2seq(dim=8)",
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_changing_the_future_changes_no_forecast(name, tmp_path):
    """Neither through the window, nor the scale, nor the filling of missing values."""
    values = table(missing=((150, 0), (151, 0), (185, 1)))
    changed = values.copy()
    changed[190:] = np.where(np.isnan(values[190:]), np.nan, values[190:] * 3 + 7)
    changed[187, 2] = np.nan
    forecasts = []
    for number, one in enumerate((values, changed)):
        folder = tmp_path / str(number)
        folder.mkdir()
        task = series(folder, one)
        with torch.no_grad():
            model = random_model(task, name)
            for parameter in model.parameters():
                parameter.uniform_(-0.5, 0.5, generator=seeded())
            windows = task.examples("test")
            forecasts.append(model(task.batch(windows, range(len(windows)), seeded())))
    first = int(task.ends[1])
    same = [n for n in range(len(forecasts[0])) if first + n <= 187]  # windows that end before the first change
    assert len(same) > 10
    assert torch.equal(forecasts[0][same], forecasts[1][same])
    assert not torch.equal(forecasts[0][-1], forecasts[1][-1])


def test_a_window_of_the_test_part_looks_back_into_validation(tmp_path):
    task = series(tmp_path)
    first = task.examples("test")[0]
    scaled = (table() - task.fitted.center) / task.fitted.spread
    middle = ROWS - ROWS * 20 // 100
    assert np.allclose(first.past.numpy(), scaled[middle - CONTEXT : middle], atol=1e-5)
    assert np.allclose(first.future.numpy(), scaled[middle : middle + HORIZON], atol=1e-5)


def test_the_linear_yardstick_is_ridge_regression_of_scikit_learn(tmp_path):
    from sklearn.linear_model import Ridge

    task = series(tmp_path, table(missing=((60, 1),)))
    windows = task.examples("train")
    past, future, known = windows.rows(range(len(windows)))
    inputs, targets = [], []
    for window in range(len(windows)):
        for column in range(COLUMNS):
            if known[window, :, column].all():
                last = past[window, -1, column].double()
                inputs.append((past[window, :, column].double() - last).numpy())
                targets.append((future[window, :, column].double() - last).numpy())
    for penalty in (1.0, 30.0):
        expected = Ridge(alpha=penalty).fit(inputs, targets)
        found = fitted([windows.rows(range(0, 40)), windows.rows(range(40, len(windows)))], penalty)
        assert np.allclose(found.weight.numpy().T, expected.coef_, atol=1e-8)
        assert np.allclose(found.intercept.numpy(), expected.intercept_, atol=1e-8)
    asked = task.examples("test")
    past, future, _ = asked.rows(range(len(asked)))
    expected = Ridge(alpha=1.0).fit(inputs, targets)
    guess = np.stack(
        [
            expected.predict((past[:, :, c] - past[:, -1:, c]).double().numpy()) + past[:, -1:, c].double().numpy()
            for c in range(COLUMNS)
        ],
        2,
    )
    states = dict(task.examine(None, "test", batch_size=3, device="cpu"))
    assert LINEAR_MSE.value(states[LINEAR_MSE]) == pytest.approx(float(((guess - future.numpy()) ** 2).mean()))
    assert LINEAR_MAE.value(states[LINEAR_MAE]) == pytest.approx(float(np.abs(guess - future.numpy()).mean()))


def test_states_merge_over_any_split_of_the_batches(tmp_path):
    task = series(tmp_path, table(missing=((180, 0),)))
    model, windows = random_model(task), task.examples("test")
    with torch.no_grad():
        parts = [
            json.loads(json.dumps(observe((MSE, MAE), Answered(model, task.batch(windows, rows, seeded())))))
            for rows in (range(0, 11), range(11, 12), range(12, len(windows)))
        ]
        whole = observe((MSE, MAE), Answered(model, task.batch(windows, range(len(windows)), seeded())))
    together = merged((MSE, MAE), parts[::-1])
    for metric in (MSE, MAE):
        assert metric.value(together[metric.name]) == pytest.approx(metric.value(whole[metric.name]), rel=1e-6)


def test_collate_and_batch_are_the_same(tmp_path):
    task = series(tmp_path, table(missing=((180, 0),)))
    for split in ("train", "test"):
        windows = pickle.loads(pickle.dumps(task)).examples(split)
        one, two = (task.batch(windows, [7, 0, 3], seeded()), task.collate([windows[n] for n in (7, 0, 3)], seeded()))
        assert torch.equal(one.inputs, two.inputs) and torch.equal(one.targets, two.targets)
        assert (one.target_keep is None) == (two.target_keep is None)


@pytest.mark.parametrize(("loss", "power"), [("squared", 2), ("absolute", 1)])
@pytest.mark.parametrize("name", ["forecaster(dim=8, layers=1, linear=true)", "seq2seq(dim=8)", "lstm-attention"])
def test_training_minimises_squared_or_absolute_errors_of_known_values(loss, power, name, tmp_path):
    task = series(tmp_path, table(missing=((CONTEXT + 3, 1),)), loss=loss)
    model = random_model(task, name)
    batch = task.batch(task.examples("train"), [0, 2, 11], seeded())
    outputs = model(batch)
    total, count = model.loss(outputs, batch)
    errors = (outputs - batch.targets).abs()[batch.target_keep].detach().numpy()
    assert float(count) == errors.size < batch.targets.numel()
    assert total.item() == pytest.approx(float((errors**power).sum()), rel=1e-5)


def test_a_restored_task_needs_no_data_and_forecasts_another_file(tmp_path):
    task = series(tmp_path)
    state = json.loads(json.dumps(task.state()))
    gone = tasks.build("series", state=state, data=str(tmp_path / "gone.csv"))
    assert gone.problems() == task.problems()
    newer = table()[:50, [2, 0, 1]]
    path = tmp_path / "newer.csv"
    lines = ["t,c,a,b", *(",".join(map(repr, [n, *row])) for n, row in enumerate(newer.tolist()))]
    path.write_text("\n".join(lines))
    example = gone.parse({"table": str(path)})
    scaled = (table()[50 - CONTEXT : 50] - task.fitted.center) / task.fitted.spread
    assert np.allclose(example.past.numpy(), scaled, atol=1e-5), "columns are found by name"
    text = gone.answer_text((torch.arange(HORIZON * COLUMNS).view(HORIZON, COLUMNS) / 4).tolist(), example)
    rows = [line.split(",") for line in text.split("\n")]
    assert rows[0] == ["time", "a", "b", "c"] and [row[0] for row in rows[1:]] == ["50", "51", "52", "53", "54"]
    expected = task.fitted.center + np.array([3, 4, 5]) / 4 * task.fitted.spread
    assert np.allclose([float(cell) for cell in rows[2][1:]], expected, rtol=1e-4)


def test_a_forecast_quotes_its_names_and_runs_no_formula(tmp_path):
    """Python's reader of CSV is the oracle: the names come back, the one that a spreadsheet would run after a sign."""
    names = ["temp, °C", '=HYPERLINK("http://x")', "-1", "@a", '5" pipe']
    values = np.random.default_rng(5).normal(size=(101, len(names)))
    with (tmp_path / "s.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["t", *names], *([n, *row] for n, row in enumerate(values.tolist()))])
    task = tasks.build("series", data=str(tmp_path / "s.csv"), context=CONTEXT, horizon=2, split="60/20/20 %")
    text = task.answer_text([[0.0] * len(names)] * 2, task.parse({"table": str(tmp_path / "s.csv")}))
    header, *rows = csv.reader(io.StringIO(text))
    assert header == ["time", names[0], "'" + names[1], "-1", "'@a", names[4]] and not text.endswith("\n")
    assert [row[0] for row in rows] == ["101", "102"]
    assert np.allclose([[float(cell) for cell in row[1:]] for row in rows], task.fitted.center, rtol=1e-4)


@pytest.mark.parametrize("cell", ["=1+1", "+x", "-x", "@x", "\t=1", "\r=1", "-", "=", "+1e", "-1.5.2"])
def test_a_cell_that_a_spreadsheet_would_run_gets_an_apostrophe(cell):
    read = list(csv.reader(io.StringIO(csv_text([["a", cell]]), newline="")))
    assert read == [["a", "'" + cell.replace("\r", "\n")]]


def test_numbers_and_other_texts_are_written_as_they_are():
    row = ["-1", "+1.5e-07", "-.5", "2.", -3, 0.1, None, "a-b", "x=1", 'ü, "q"', "two\nlines", ""]
    read = ["" if cell is None else str(cell) for cell in row]
    assert list(csv.reader(io.StringIO(csv_text([row]), newline=""))) == [read]


def test_a_file_that_was_not_trained_on_is_measured_as_a_whole(tmp_path):
    task = series(tmp_path)
    other = tasks.build("series", state=task.state(), data=written(tmp_path, table(60), "y.csv"), whole=True)
    assert len(other.examples("test")) == 60 - CONTEXT - HORIZON + 1
    assert other.examine(None, "test", batch_size=3, device="cpu") == []
    with pytest.raises(BadValue, match="nothing is left for training"):
        other.examples("train")


def test_columns_are_chosen_by_name_and_a_constant_one_is_no_trouble(tmp_path):
    values = table()
    values[:, 0] = 4.0
    task = series(tmp_path, values, columns="c,a")
    assert task.streams()["inputs"].width == 2 and task.fitted.columns == ["c", "a"]
    past = task.examples("test")[0].past
    assert torch.isfinite(past).all() and (past[:, 1] == 0).all()
    with torch.no_grad():
        assert torch.isfinite(random_model(task)(task.collate([task.examples("test")[0]], seeded()))).all()
    with pytest.raises(BadValue, match=r"columns: column of .*x\.csv: there is no 'd'"):
        series(tmp_path, columns="d").streams()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"context": 200}, r"part for training has 126 rows.*context=200 and horizon=5 needs 205"),
        ({"horizon": 50}, r"part for validation has 43 rows.*needs 50"),
        ({"split": "12/4/4 months"}, "times of this series are numbers"),
        ({"gaps": "leave"}, "gaps: expected fill or join"),
        ({"loss": "cubed"}, "loss: there is no 'cubed'.*Known: absolute, squared"),
        ({"context": 1}, "context: expected a whole number of at least 2"),
    ],
)
def test_options_that_do_not_fit_say_what_to_change(options, words, tmp_path):
    with pytest.raises(BadValue, match=words):
        series(tmp_path, **options).examples("train")


def test_a_table_that_is_too_short_or_lacks_a_column_is_refused(tmp_path):
    task = series(tmp_path)
    task.streams()
    with pytest.raises(BadValue, match=r"looks back 13 steps, and .* has 9 rows"):
        task.parse({"table": written(tmp_path, table(9), "short.csv")})
    with pytest.raises(BadValue, match="expected a CSV file"):
        task.parse({"table": str(tmp_path)})
    with pytest.raises(BadValue, match=r"--text: the task series reads vectors\. Give --table"):
        task.parse({"text": "1 2 3"})


def test_missing_values_are_stated(tmp_path):
    task = series(tmp_path, table(missing=((3, 1), (4, 1))))
    assert task.protocol()["missing"].startswith("2 values are missing: windows hold the last known value")


def test_models_of_every_form_of_the_answer_are_compared():
    """The issue's four, and one that gives a row for all: mse and mae of each on the same windows."""
    names = ["forecaster", "transformer", "seq2seq", "linear-forecaster", "lstm-attention"]
    found = compose({"task": "series", "steps": 1}, names)
    assert [one.model for one in found.contestants] == names and not found.left_out
    needs = {models.problem_for(name, tasks.build("series").problems()).answer.needs for name in names}
    assert needs == {"future", "steps", "pooled"}


def test_the_generated_machines_are_always_the_same():
    one, two = tasks.build("series"), tasks.build("series(seed=1)")
    assert one.table.values.shape == (14400, 3) and one.streams()["inputs"].length == 96
    assert np.array_equal(one.table.values, tasks.build("series").table.values)
    assert not np.array_equal(one.table.values, two.table.values)


@pytest.mark.parametrize(
    ("rows", "step", "split"),
    [
        (14_400, 3600.0, "12/4/4 months"),  # 20 months of 30 days, hour by hour
        (14_399, 3600.0, "70/10/20 %"),
        (10**6, None, "70/10/20 %"),  # times that are numbers
    ],
)
def test_without_a_split_months_are_taken_where_there_are_twenty(rows, step, split):
    assert usual_split(rows, step) == split
