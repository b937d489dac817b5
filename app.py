"""Start the app: `python app.py`, `gradio app.py` (reloads on change), or a Space's `app_file`."""

from app.shell import build, launch

demo = build()

if __name__ == "__main__":
    launch(demo)
